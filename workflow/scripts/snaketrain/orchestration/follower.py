"""The follower as a workflow starts it; at the workflow's end it is waited for, but not for ever, and never in silence."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from snaketrain.config.schema import Tracking

SCRIPT = Path(__file__).resolve().parents[2] / "tools/follow_runs.py"
NOTE = ".follower.doing"  # in the results: what it is at
QUIET_SECONDS = 2  # a wait so short is not worth a word


def command(results: Path, uri: str | None, models: bool, *options: str) -> list[str]:
    where = [f"--uri={uri}"] if uri else []
    return [sys.executable, str(SCRIPT), "--results", str(results), *where, *([] if models else ["--no-models"]), *options]


class FollowerProcess:
    def __init__(self, results: Path, tracking: Tracking):
        self.results, self.tracking = results.resolve(), tracking
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """In a session of its own: Ctrl-C is the workflow's business, and what it starts ends with it."""
        self.process = subprocess.Popen(self._command(*options or ("--while-pid", str(os.getpid()))), start_new_session=True)

    def finish(self) -> None:
        """It has a last look at everything and ends; where that takes too long, say how to finish it later."""
        if self.process is None:
            return
        end = time.monotonic() + self.tracking.wait_seconds
        with interrupts() as interrupted:
            self.process.terminate()
            ended = self._wait(self.process, end, interrupted)
            if ended and self.process.returncode:  # it had not even begun
                self.start("--once")
                ended = self._wait(self.process, end, interrupted)
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            why = "interrupted" if interrupted else f"after {self.tracking.wait_seconds:g} seconds (tracking.wait_seconds) it was ended"
            say(
                f"MLflow is not up to date: {why} while {self._doing()}. Nothing is lost. To finish it: {shlex.join(self._command('--once'))}"
            )

    def _wait(self, process: subprocess.Popen[bytes], end: float, interrupted: list[int]) -> bool:
        """Whether it has ended by itself."""
        began, told = time.monotonic(), None
        while process.poll() is None:
            if interrupted or time.monotonic() >= end:
                return False
            if time.monotonic() - began > QUIET_SECONDS and (doing := self._doing()) != told:
                say(
                    f"waiting for MLflow, {doing}: at most {end - time.monotonic():.0f} more seconds (tracking.wait_seconds), or until Ctrl-C"
                )
                told = doing
            time.sleep(0.1)
        return True

    def _doing(self) -> str:
        try:
            return (self.results / NOTE).read_text(encoding="utf-8")
        except OSError:
            return "looking at the runs"

    def _command(self, *options: str) -> list[str]:
        return command(self.results, self.tracking.uri, self.tracking.register_models, *options)


@contextlib.contextmanager
def interrupts() -> Iterator[list[int]]:
    """The signals that would end us are collected here instead."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # where none can be caught
        yield received
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
