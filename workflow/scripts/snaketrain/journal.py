"""What happened in a training, a JSON object a line: the truth that MLflow, TensorBoard and the comparison follow.

Only the first process writes it. Lines reach the file at once, so a killed process loses nothing it has written down.
"""

import json
import os
import time
from pathlib import Path
from typing import Any


class Journal:
    def __init__(self, path: Path, resume_step: int, writes: bool, **about: Any):
        self.writes, self.attempt = writes, 1
        if not writes:
            return
        if path.exists():
            self.attempt = _repair(path) + 1
        self.file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - open as long as the training
        self.write("attempt", resume_step=resume_step, **about)

    def write(self, event: str, **content: Any) -> None:
        if self.writes:
            line = {"event": event, **content, "time": round(time.time(), 3), "attempt": self.attempt}
            self.file.write(json.dumps(line) + "\n")

    def sync(self) -> None:
        """To the disk itself; at checkpoints, so that a checkpoint never knows more than the journal."""
        if self.writes:
            os.fsync(self.file.fileno())


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All whole lines."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def _repair(path: Path) -> int:
    """Cut off a line torn by a crash; the number of attempts so far."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    return sum(json.loads(line)["event"] == "attempt" for line in content[:whole].splitlines())
