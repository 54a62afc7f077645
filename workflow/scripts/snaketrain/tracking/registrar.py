"""Has models registered by a process of its own: to load and save one takes a while, for which the curves need not wait."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "register_model.py"


class Registrar:
    def __init__(self, uri: str, log: Path):
        self.uri, self.log = uri, log
        self.process: subprocess.Popen | None = None
        self.asked: set[Path] = set()

    def see_to(self, due: set[Path]) -> None:
        """Begin with the runs that are due, unless others are at work; one that failed is not tried again by the same follower."""
        if self.process and self.process.poll() is None:
            return
        if new := sorted(due - self.asked):
            self.asked |= set(new)
            with open(self.log, "w", encoding="utf-8") as log:
                command = [sys.executable, str(SCRIPT), *map(str, new), "--uri", self.uri]
                self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})

    def finish(self, due: set[Path]) -> str | None:
        """Wait for all; what went wrong, if anything did."""
        if self.process:
            self.process.wait()
        self.see_to(due)
        if self.process and self.process.wait():
            last = (self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it was killed"])[-1]
            return f"the best model could not be registered: {last[:300]} (all of it: {self.log})"
        return None
