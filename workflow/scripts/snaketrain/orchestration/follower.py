"""The follower of a workflow: restarted when it dies, and waited for at the workflow's end, for a limited time."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from snaketrain.config.schema import Tracking
from snaketrain.config.schema.of_extras import hooks
from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.manifests import private

SCRIPT = Path(__file__).resolve().parents[2] / "tools/follow_runs.py"
NOTE = ".follower.doing"  # in the results: what it is doing
LOG = ".follower.log"  # in the results: its warnings, which the workflow shows
ON_END, ON_END_SINCE = "SNAKETRAIN_ON_END", "SNAKETRAIN_ON_END_SINCE"  # in the follower's environment, which process lists do not show
QUIET_SECONDS = 2  # a shorter wait is not announced
MOST_DEATHS = 5  # in a row; then it is not started again
FIRST_PAUSE_SECONDS, PAUSE_FACTOR = 2.0, 4  # before it is started again: 2, 8, 32, 128 seconds
STEADY_SECONDS = 600  # after running for so long, earlier deaths do not count
LOOK_EVERY_SECONDS = 0.2


def command(results: Path, uri: str | None, given: Tracking | Namespace, *options: str) -> list[str]:
    """`given`: settings or arguments, of which extras make more options."""
    where = [*([f"--uri={uri}"] if uri else []), *(word for words in hooks("following", "words") for word in words(given))]
    return [sys.executable, str(SCRIPT), "--results", str(results), *where, *options]


class FollowerLog:
    """The follower's stderr: a file, since the follower may outlive the workflow, which is shown while it grows."""

    def __init__(self, path: Path, environment: dict[str, str]):
        self.path, self.environment, self._shown, self._began = path, os.environ | environment, 0, 0

    def start(self, process: list[str]) -> subprocess.Popen[bytes]:
        """In its own session: Ctrl-C must reach only the workflow, and the follower's children can be ended with it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self.path, "ab", opener=private)  # noqa: SIM115 - closed below
        except OSError:  # results that cannot be written to, which the follower itself reports
            return subprocess.Popen(process, env=self.environment, start_new_session=True)
        with file:
            self._began = file.tell()
            self._shown = self._shown or self._began
            return subprocess.Popen(process, env=self.environment, start_new_session=True, stderr=file)

    def show(self) -> None:
        new = self._text(self._shown)
        whole = new[: new.rfind(b"\n") + 1]
        if whole:
            print(hidden(whole.decode(errors="replace")), end="", file=sys.stderr, flush=True)
            self._shown += len(whole)

    def last_line(self) -> str:
        """Of the process that was started last."""
        lines = self._text(self._began).decode(errors="replace").strip().splitlines()
        return hidden(lines[-1])[:300] if lines else ""

    def _text(self, offset: int) -> bytes:
        try:
            with open(self.path, "rb") as file:
                file.seek(offset)
                return file.read()
        except OSError:
            return b""


class FollowerProcess:
    def __init__(self, results: Path, tracking: Tracking):
        self.results, self.tracking = results.resolve(), tracking
        self.process: subprocess.Popen[bytes] | None = None
        on_end = {ON_END: tracking.on_end, ON_END_SINCE: str(time.time())} if tracking.on_end else {}
        self.log = FollowerLog(self.results / LOG, on_end)
        self._finishing = threading.Event()
        self._watching: threading.Thread | None = None

    def start(self) -> None:
        self.process = self.log.start(self._following())
        self._watching = threading.Thread(target=self._watch, args=(self.process,), name="follower", daemon=True)
        self._watching.start()

    def finish(self) -> None:
        """Let it make its last pass and end; if that takes too long, say how to finish it later."""
        if self.process is None or self._watching is None:
            return
        self._finishing.set()
        self._watching.join()
        end = time.monotonic() + self.tracking.wait_seconds
        with interrupts() as interrupted:
            early = self.process.poll() is not None
            if not early:
                self.process.terminate()
            ended = self._wait(self.process, end, interrupted)
            if ended and (early or self.process.returncode):
                self.process = self.log.start(self._command("--once"))
                ended = self._wait(self.process, end, interrupted)
        if not ended:
            end_all_of(self.process)
            why = "interrupted" if interrupted else f"after {self.tracking.wait_seconds:g} seconds (tracking.wait_seconds) it was ended"
            self._not_up_to_date(f"{why} while {self._doing()}")
        elif self.process.returncode:
            self._not_up_to_date(f"the follower {self._how_it_ended(self.process)}")

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Until the workflow ends: show what the follower writes, and start it again when it dies."""
        pause, deaths, began = FIRST_PAUSE_SECONDS, 0, time.monotonic()
        while not self._finishing.wait(LOOK_EVERY_SECONDS):
            self.log.show()
            if process.poll() is None:
                continue
            self.log.show()
            end_all_of(process)  # a model that is being registered
            if process.returncode == 0:  # it was ended on purpose
                return
            if time.monotonic() - began > STEADY_SECONDS:
                pause, deaths = FIRST_PAUSE_SECONDS, 0
            deaths += 1
            how = f"the follower, which updates MLflow, {self._how_it_ended(process)}"
            if deaths == MOST_DEATHS:
                return say(
                    f"{how}. It died {deaths} times in a row and is not started again before the end of the workflow. Nothing is lost. "
                    f"To update MLflow earlier: {shlex.join(self._command('--once'))}"
                )
            say(f"{how}. Nothing is lost; starting it again in {pause:g} seconds.")
            if self._finishing.wait(pause):
                return
            pause, began = pause * PAUSE_FACTOR, time.monotonic()
            self.process = process = self.log.start(self._following())

    def _wait(self, process: subprocess.Popen[bytes], end: float, interrupted: list[int]) -> bool:
        """Whether it has ended by itself."""
        began, said = time.monotonic(), None
        while process.poll() is None:
            self.log.show()
            if interrupted or time.monotonic() >= end:
                return False
            if time.monotonic() - began > QUIET_SECONDS and (doing := self._doing()) != said:
                say(
                    f"waiting for MLflow, {doing}: at most {end - time.monotonic():.0f} more seconds (tracking.wait_seconds), or until Ctrl-C"
                )
                said = doing
            time.sleep(0.1)
        self.log.show()
        return True

    def _how_it_ended(self, process: subprocess.Popen[bytes]) -> str:
        code = process.returncode
        names = {each.value: each.name for each in signal.Signals}
        how = f"was killed by {names.get(-code, f'signal {-code}')}" if code < 0 else f"ended with exit code {code}"
        last = self.log.last_line()
        return f"{how} ({last})" if last else how

    def _not_up_to_date(self, why: str) -> None:
        say(f"MLflow is not up to date: {why}. Nothing is lost. To finish it: {shlex.join(self._command('--once'))}")

    def _doing(self) -> str:
        try:
            return (self.results / NOTE).read_text(encoding="utf-8")
        except OSError:
            return "looking at the runs"

    def _following(self) -> list[str]:
        return self._command("--while-pid", str(os.getpid()))

    def _command(self, *options: str) -> list[str]:
        return command(self.results, self.tracking.uri, self.tracking, *options)


def end_all_of(process: subprocess.Popen[bytes]) -> None:
    """Kill it with everything it started, which is in the same session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def interrupts() -> Iterator[list[int]]:
    """Collects the signals that would otherwise end this process."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread can catch signals
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
