"""The follower's loop: passes over the runs until the workflow has ended, even if MLflow fails meanwhile."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from snaketrain.config.schema.of_extras import hooks
from snaketrain.orchestration.follower import NOTE, ON_END, ON_END_SINCE, command
from snaketrain.runtime.credentials import hidden, resolved
from snaketrain.runtime.manifests import private, write_json
from snaketrain.runtime.ownership import Lease, LeaseLost
from snaketrain.tracking.database import SQLITE, must_be_copied
from snaketrain.tracking.tracked import Problem, problem_with, read_json

if TYPE_CHECKING:
    from snaketrain.tracking.following import Follower, RunEnd


TOOLS = Path(__file__).resolve().parents[2] / "tools"

# --- The user's command `tracking.on_end`, run when a run ends, for example to send a mail. Its failure does not affect the workflow.

KEEP_LOG = TOOLS / "keep_log.py"
TOLD, LOG = ".on_end.json", ".on_end.log"
LONGEST_SECONDS = 60.0  # for the command
LOG_SECONDS = 5.0  # after its end, until all that it has said is written


class OnEnd:
    def __init__(self, command: str | None, since: float, results: Path):
        """`since`: when the workflow started; runs that ended before are not announced."""
        self.command, self.since, self.log = command, since, results / LOG
        # the run, when its command began, the command, and what writes to the log what that says
        self.running: list[tuple[str, float, subprocess.Popen[bytes], subprocess.Popen[bytes]]] = []

    @classmethod
    def of_environment(cls, results: Path) -> "OnEnd":
        return cls(os.environ.get(ON_END), float(os.environ.get(ON_END_SINCE, "inf")), results)

    def notify(self, end: "RunEnd", last: bool) -> None:
        """Run the command once for each end. If the workflow will still resume or evaluate the run, wait for that, or for the workflow's end."""
        will_continue = end.state == "stopped" or end.awaited_since >= self.since
        if not self.command or end.time < self.since or (will_continue and not last):
            return
        if (read_json(end.training / TOLD) or {}).get("told") == end.token:
            return
        write_json(end.training / TOLD, {"told": end.token})
        keep = subprocess.Popen(
            [sys.executable, KEEP_LOG, "-a", self.log], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        assert keep.stdin
        with keep.stdin as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self.command], env=os.environ | end.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self.log.parent.parent, start_new_session=True,
            )  # fmt: skip
        self.running.append((end.run, time.monotonic(), process, keep))

    def finish(self) -> list[str]:
        """Wait for the commands, each for a minute at most; returns warnings about those that failed."""
        return [
            f"tracking.on_end: the command for {run} {failure}. Its output is in {self.log}"
            for run, began, process, keep in self.running
            if (failure := self._failure(began, process, keep))
        ]

    def _failure(self, began: float, process: subprocess.Popen[bytes], keep: subprocess.Popen[bytes]) -> str | None:
        try:
            code = process.wait(max(0.0, began + LONGEST_SECONDS - time.monotonic()))
            failure = f"failed with exit code {code}" if code else None
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            failure = f"was killed after {LONGEST_SECONDS:g} seconds"
        with contextlib.suppress(subprocess.TimeoutExpired):  # something that the command left running may still write
            keep.wait(LOG_SECONDS)
        return failure


# --- The loop

LONGEST_PAUSE_SECONDS = 15


@dataclass(frozen=True)
class Options:
    results: Path
    given_uri: str  # as in tracking.uri
    arguments: Namespace  # of follow_runs.py, with those that the extras have added

    @cached_property
    def uri(self) -> str:
        return resolved(self.given_uri)

    @property
    def database(self) -> Path | None:
        """None if there is a server."""
        return Path(self.uri.removeprefix(SQLITE)) if self.uri.startswith(SQLITE) else None

    @property
    def to_repeat(self) -> str:
        """The command that brings MLflow up to date by hand."""
        return shlex.join(command(self.results, self.given_uri, self.arguments, "--once"))


class DatabaseElsewhere(Protocol):
    """MLflow's database in another place than its own, to which it is copied: an extra may open one. Copying returns a warning, if there is one."""

    @property
    def uri(self) -> str: ...

    @property
    def artifacts(self) -> Path: ...

    def copy_when_due(self) -> str | None: ...

    def copy(self, complete: bool) -> str | None: ...

    def remove(self) -> None: ...


class Beside(Protocol):
    """What an extra does beside the follower, in a process of its own, since it takes long. `uri`: MLflow's, for that process."""

    def start(self, follower: "Follower", uri: str) -> None: ...  # after each pass but the last

    def finish(self, follower: "Follower", uri: str, note: Callable[[str], None]) -> str | None: ...  # what went wrong, if anything did

    def stop(self) -> None: ...  # another follower does it now


class Loop:
    def __init__(self, options: Options, lease: Lease, is_over: Callable[[], bool]):
        self.options, self.lease, self.is_over = options, lease, is_over
        self.follower: Follower | None = None
        self.local: DatabaseElsewhere | None = None
        doing = (beside(options.results, options.arguments) for beside in hooks("following", "beside"))
        self.beside: list[Beside] = [each for each in doing if each]
        self.on_end = OnEnd.of_environment(options.results)
        self.open_elsewhere: Callable[[Path, Callable[[], None]], DatabaseElsewhere] | None = None
        for elsewhere in hooks("following", "elsewhere") if options.database else ():
            opens, warning = elsewhere(options.database, options.arguments)
            self.open_elsewhere = opens or self.open_elsewhere
            if warning:
                warn(warning)
        if options.database and not self.open_elsewhere and (why := must_be_copied(options.database)):
            warn(f"{options.database}: {why}. Set tracking.uri to an MLflow server")

    def run(self) -> None:
        failures, last = 0, False  # failures in a row that concern all runs
        of_one_run: bool | None = None  # of the last problem; None if there is none
        while not last:
            # checked before the pass, so that the last pass sees everything the process wrote before it ended
            last = self.options.arguments.once or self.is_over()
            problem = self._pass(last)
            failures = failures + 1 if problem and not problem.of_one_run else 0
            if problem and (last or of_one_run is not problem.of_one_run):
                later = f"{problem.advice}; then: {self.options.to_repeat}" if last else "Nothing is lost; trying again."
                warn(f"{problem.what}. {later}")
            of_one_run = problem.of_one_run if problem else None
            if not last:
                longest = max(LONGEST_PAUSE_SECONDS, self.options.arguments.interval)
                self._pause(min(self.options.arguments.interval * 2 ** min(failures, 10), longest))
        if self.follower and not problem and (self.options.arguments.once or self.follower.runs()):
            self._print_addresses(self.follower)
        for warning in self.on_end.finish():
            warn(warning)
        if self.local:
            self.local.remove()

    def _pass(self, last: bool) -> Problem | None:
        """Update all runs once; no error here may affect the runs themselves."""
        try:
            self.lease.check()
            follower = self.follower = self.follower or self._connect()
            problem = self._update(follower, last)
            if self.local and (warning := self.local.copy(complete=True) if last else self.local.copy_when_due()):
                warn(warning)
            return problem
        except LeaseLost:
            for each in self.beside:
                each.stop()
            raise
        except Exception as error:
            if self.follower:
                self.follower.forget()
            return problem_with(self.options.uri, error)

    def _update(self, follower: "Follower", last: bool) -> Problem | None:
        if last:
            follower.jobs.asked_at = None  # ask SLURM again
            follower.failed.clear()  # and try all runs again
            follower.forget()  # sent again is what MLflow has lost meanwhile
        problem = follower.update_all(self._note if last else lambda doing: None)
        for end in follower.ends.values():
            self.on_end.notify(end, last)
        uri = self.local.uri if self.local else self.options.given_uri
        for each in self.beside:
            if not last:
                each.start(follower, uri)
            elif failed := each.finish(follower, uri, self._note):
                problem = Problem(failed, "See that log")
        return problem

    def _connect(self) -> "Follower":
        self._note(f"connecting to {self.options.uri}")
        from snaketrain.tracking.following import Follower  # the import takes seconds, and may fail
        from snaketrain.tracking.mlflow_store import Store

        if not self.open_elsewhere:
            return Follower(self.options.results, Store(self.options.uri, self.lease.check))
        self.local = self.open_elsewhere(self.options.results, self.lease.check)
        return Follower(self.options.results, Store(self.local.uri, self.lease.check, self.local.artifacts))

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self.is_over():
            time.sleep(min(left, 0.5))

    def _note(self, text: str) -> None:
        """Note what the follower is doing, so that a waiting workflow can print it."""
        with contextlib.suppress(OSError), open(self.options.results / NOTE, "w", encoding="utf-8", opener=private) as note:
            note.write(hidden(text))

    def _print_addresses(self, follower: "Follower") -> None:
        """Of pages only where a server is there to show them; otherwise the command that starts one."""
        uri, is_server = self.options.uri.rstrip("/"), self.options.uri.startswith("http")
        beside = uri == f"{SQLITE}{Path('mlflow.db').resolve()}"  # what the command shows by default
        show = [os.path.relpath(f"{sys.prefix}/bin/snaketrain"), "ui", *([] if beside else ["--uri", uri])]
        runs = len(follower.runs())
        print(hidden(f"MLflow is up to date with {runs} run{'s' * (runs != 1)}. Look at them: {uri if is_server else shlex.join(show)}"))
        if is_server:
            print(*follower.addresses(hidden(uri)), sep="\n")


def warn(message: str) -> None:
    print(hidden(f"warning: {message}"), file=sys.stderr, flush=True)
