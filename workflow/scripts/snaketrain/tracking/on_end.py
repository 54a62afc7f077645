"""Runs the user's command `tracking.on_end` when a run ends, for example to send a mail. Its failure does not affect the workflow."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from snaketrain.orchestration.follower import ON_END, ON_END_SINCE
from snaketrain.runtime import strict_json
from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.manifests import write_json
from snaketrain.tracking.tracked import read_json

KEEP_LOG = Path(__file__).resolve().parents[2] / "tools/keep_log.py"
TOLD, LOG = ".on_end.json", ".on_end.log"
LONGEST_SECONDS = 60.0  # for the command
LOG_SECONDS = 5.0  # after its end, until all that it has said is written


@dataclass(frozen=True)
class RunEnd:
    training: Path
    run: str
    state: str  # finished, failed, killed or stopped
    reason: str
    time: float
    attempts: int
    run_id: str  # in MLflow
    awaited_since: float = 0.0  # when the workflow began that is still to evaluate the run on a set; 0: none is
    figures: Callable[[], dict[str, float]] = dict  # the metrics of a finished run

    @property
    def token(self) -> str:
        return f"{self.state} {self.attempts} {self.time}"

    def environment(self) -> dict[str, str]:
        """What the command learns about the run. It is not part of the command, so no text in it is executed."""
        about = {"RUN": self.run, "STATE": self.state, "REASON": hidden(self.reason), "FOLDER": str(self.training.parent)}
        figures = self.figures()
        about |= {"RUN_ID": self.run_id, "FIGURES": strict_json.dumps(figures)}
        figures_by_name = {re.sub(r"\W", "_", name).upper(): f"{value:.5g}" for name, value in figures.items()}
        return {f"SNAKETRAIN_{name}": value.replace("\0", " ") for name, value in (figures_by_name | about).items()}


class OnEnd:
    def __init__(self, command: str | None, since: float, results: Path):
        """`since`: when the workflow started; runs that ended before are not announced."""
        self.command, self.since, self.log = command, since, results / LOG
        self.running: list[tuple[str, float, subprocess.Popen[bytes]]] = []
        self.logging: list[subprocess.Popen[bytes]] = []  # which write what the commands say

    @classmethod
    def of_environment(cls, results: Path) -> "OnEnd":
        return cls(os.environ.get(ON_END), float(os.environ.get(ON_END_SINCE, "inf")), results)

    def notify(self, end: RunEnd, last: bool) -> None:
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
        self.running.append((end.run, time.monotonic(), process))
        self.logging.append(keep)

    def finish(self) -> list[str]:
        """Wait for the commands, each for a minute at most; returns warnings about those that failed."""
        warnings = [warning for each in self.running if (warning := self._outcome(*each))]
        for keep in self.logging:
            with contextlib.suppress(subprocess.TimeoutExpired):  # something that the command left running may still write
                keep.wait(LOG_SECONDS)
        return warnings

    def _outcome(self, run: str, began: float, process: subprocess.Popen[bytes]) -> str | None:
        try:
            code = process.wait(max(0.0, began + LONGEST_SECONDS - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"tracking.on_end: the command for {run} was killed after {LONGEST_SECONDS:g} seconds. Its output is in {self.log}"
        return f"tracking.on_end: the command for {run} failed with exit code {code}. Its output is in {self.log}" if code else None
