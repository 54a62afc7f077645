"""Keeps MLflow up to date with the files of the runs. Nothing else in the project knows MLflow."""

import os

# MLflow reads these when it is imported, which modules of this package do; with its defaults a server that hangs blocks one call for ten minutes
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # it would print two lines for every run
