"""Keeps MLflow up to date with the files of the runs. Nothing else in the project knows MLflow."""
