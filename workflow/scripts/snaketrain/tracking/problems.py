"""What an error of MLflow means, and what can be done about it."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    what: str
    advice: str = "Correct that"
    of_one_run: bool = False  # the others are recorded meanwhile


def problem_with(uri: str, error: Exception) -> Problem:
    text = str(error)
    if status := re.search(r"too many (5\d\d) error responses|(?:error|status) code (5\d\d)", text):
        return Problem(f"MLflow at {uri}: the server fails (HTTP {status[1] or status[2]})", "See the log of the server")
    if "Max retries exceeded" in text:
        return Problem(f"MLflow at {uri}: it does not answer", "Start it, or correct tracking.uri")
    if re.search(r"(error|status) code 40[13]", text):
        return Problem(
            f"MLflow at {uri}: access denied", "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        )
    if re.search(r"table \S+ already exists", text):
        return Problem(
            f"MLflow at {uri}: the database is incomplete, since its creation was interrupted",
            "Delete its file: it is made again from the files of the runs",
        )
    return Problem(f"MLflow at {uri}: {first_line(error)}", "Start it, or correct tracking.uri")


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
