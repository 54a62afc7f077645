"""Rare classes more often than they occur."""
