"""What the follower does with this extra: it registers the best models, unless its option `--no-models` or the configuration says not to."""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.runtime.manifests import private

if TYPE_CHECKING:
    from snaketrain.config.schema import Tracking
    from snaketrain.tracking.following import Follower

PROGRAM = Path(__file__).with_name("registering.py")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-models", action="store_true", help="do not register the best model in the model registry")


def words(given: "Tracking | argparse.Namespace") -> list[str]:
    registers = not given.no_models if isinstance(given, argparse.Namespace) else given.register_models  # type: ignore[attr-defined]
    return [] if registers else ["--no-models"]


def beside(results: Path, arguments: argparse.Namespace) -> "Registrar | None":
    return None if arguments.no_models else Registrar(results / ".register_model.log")


class Registrar:
    """Registers models in a separate process: loading and saving one takes a while, and the curves must not wait for it."""

    def __init__(self, log: Path):
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.asked: set[Path] = set()
        self.registering: list[Path] = []

    def start(self, follower: "Follower", uri: str) -> None:
        """Register the models that are due, unless others are being registered. A follower tries each run only once."""
        from snaketrain.extras.registry.registering import is_due

        if self.process and self.process.poll() is None:
            return
        waiting = sorted(follower.evaluated.keys() - self.asked)
        if new := [folder for folder in waiting if is_due(folder, follower.store.uri, follower.evaluated[folder])]:
            self.asked |= set(new)
            self.registering = new
            command = [sys.executable, str(PROGRAM), *map(str, new), "--uri", uri]
            with open(self.log, "w", encoding="utf-8", opener=private) as log:
                self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})

    def finish(self, follower: "Follower", uri: str, note: Callable[[str], None]) -> str | None:
        self._wait(note)
        self.start(follower, uri)
        if self._wait(note):
            last = (self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["the process was killed"])[-1]
            return f"the best model could not be registered: {last[:300]} (full log: {self.log})"
        return None

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _wait(self, note: Callable[[str], None]) -> int:
        if self.process is None:
            return 0
        note(f"registering the best model of {', '.join(folder.name for folder in self.registering)}")
        return self.process.wait()
