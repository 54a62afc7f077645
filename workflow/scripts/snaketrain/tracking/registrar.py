"""Registers models in a separate process: loading and saving one takes a while, and the curves must not wait for it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from snaketrain.runtime.private_files import private

SCRIPT = Path(__file__).resolve().parents[2] / "tools/register_model.py"


class Registrar:
    def __init__(self, uri: str, log: Path):
        self.uri, self.log = uri, log
        self.process: subprocess.Popen[bytes] | None = None
        self.asked: set[Path] = set()
        self.registering: list[Path] = []

    def forget(self) -> None:
        """Registered models may have been deleted."""
        self.asked.clear()

    def start(self, due: set[Path]) -> None:
        """Register these runs, unless others are being registered. A follower tries each run only once."""
        if self.process and self.process.poll() is None:
            return
        if new := sorted(due - self.asked):
            self.asked |= set(new)
            self.registering = new
            command = [sys.executable, str(SCRIPT), *map(str, new), "--uri", self.uri]
            with open(self.log, "w", encoding="utf-8", opener=private) as log:
                self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})

    def finish(self, due: set[Path], note: Callable[[str], None]) -> str | None:
        """Register the rest and wait; returns what went wrong, if anything did."""
        self._wait(note)
        self.start(due)
        if self._wait(note):
            last = (self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["the process was killed"])[-1]
            return f"the best model could not be registered: {last[:300]} (full log: {self.log})"
        return None

    def stop(self) -> None:
        """Another follower registers the models now."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _wait(self, note: Callable[[str], None]) -> int:
        if self.process is None:
            return 0
        note(f"registering the best model of {', '.join(folder.name for folder in self.registering)}")
        return self.process.wait()
