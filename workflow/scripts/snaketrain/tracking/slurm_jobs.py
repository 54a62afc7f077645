"""Which SLURM jobs have ended: one query for all of them, so rarely that it does not burden a busy cluster."""

import contextlib
import time
from collections.abc import Callable

from snaketrain.slurm.client import Slurm, SlurmError

ASK_EVERY_SECONDS = 30


class SlurmJobs:
    def __init__(self, at_work: Callable[[], set[str]]):
        """`at_work`: the jobs of all runs that may still be writing, which are queried together."""
        self.slurm, self.at_work = Slurm(), at_work
        self.over: set[str] = set()
        self.doubtful: set[str] = set()
        self.asked_at: float | None = None

    def is_over(self, job: str) -> bool:
        """False until SLURM reports that it has ended."""
        if self.asked_at is None or time.monotonic() - self.asked_at >= ASK_EVERY_SECONDS:
            self.ask()
        return job in self.over

    def doubt(self, job: str) -> None:
        """Query this job again: its training has written to its journal, and a requeued job keeps its ID."""
        self.doubtful.add(job)

    def ask(self) -> None:
        asked = (self.at_work() - self.over) | self.doubtful
        self.asked_at = time.monotonic()
        if asked and self.slurm.is_installed():
            with contextlib.suppress(SlurmError):
                listed = self.slurm.in_queue(asked)
                self.over, self.doubtful = (self.over - asked) | (asked - listed), set()
