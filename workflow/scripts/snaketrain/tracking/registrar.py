"""Has models registered by a process of its own: to load and save one takes a while, for which the curves need not wait."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools/register_model.py"


class Registrar:
    def __init__(self, uri: str, log: Path):
        self.uri, self.log = uri, log
        self.process: subprocess.Popen[bytes] | None = None
        self.asked: set[Path] = set()
        self.at_work: list[Path] = []

    def forget(self) -> None:
        """What was registered may be no longer there."""
        self.asked.clear()

    def see_to(self, due: set[Path]) -> None:
        """Begin with the runs that are due, unless others are at work; one that failed is not tried again by the same follower."""
        if self.process and self.process.poll() is None:
            return
        if new := sorted(due - self.asked):
            self.asked |= set(new)
            self.at_work = new
            command = [sys.executable, str(SCRIPT), *map(str, new), "--uri", self.uri]
            with open(self.log, "w", encoding="utf-8") as log:
                self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})

    def finish(self, due: set[Path], note: Callable[[str], None]) -> str | None:
        """Wait for all, and note for which; what went wrong, if anything did."""
        self._wait(note)
        self.see_to(due)
        if self._wait(note):
            last = (self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it was killed"])[-1]
            return f"the best model could not be registered: {last[:300]} (all of it: {self.log})"
        return None

    def _wait(self, note: Callable[[str], None]) -> int:
        if self.process is None:
            return 0
        note(f"registering the best model of {', '.join(folder.name for folder in self.at_work)}")
        return self.process.wait()
