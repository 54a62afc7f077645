"""Runs that start from the selected model of another run."""
