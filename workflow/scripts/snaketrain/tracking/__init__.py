"""Keeps MLflow up to date from the files of the runs. Nothing else in the project knows MLflow."""
