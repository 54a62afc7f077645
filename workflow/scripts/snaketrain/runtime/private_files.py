"""Logs and records, which their owner and its group may read. A stricter umask holds, and what exists keeps its permissions."""

import os
from pathlib import Path

PRIVATE_FILE, PRIVATE_FOLDER = 0o640, 0o750


def private(path: str, flags: int) -> int:
    """An `opener` for `open`."""
    return os.open(path, flags, PRIVATE_FILE)


def make_private_folder(path: str | Path) -> None:
    Path(path).mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
