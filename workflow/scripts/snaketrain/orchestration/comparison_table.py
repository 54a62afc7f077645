"""Repeats the table of the comparison on the console, at the end of a workflow that has made it."""

import sys
from pathlib import Path

LOG = Path("logs/compare_runs.log")


def print_comparison() -> None:
    """What the job has printed, without its command and its last line."""
    lines = LOG.read_text(encoding="utf-8", errors="replace").splitlines()[1:] if LOG.is_file() else []
    print("", *(line for line in lines if not line.startswith("compare_runs: done in")), "", sep="\n", file=sys.stderr)
