"""Which SLURM jobs are over: one call of squeue for all of them, and not more often than a busy cluster likes."""

import shutil
import subprocess
import time
from collections.abc import Callable

ASK_EVERY_SECONDS = 30
ANSWERS_WITHIN_SECONDS = 30


class SlurmJobs:
    def __init__(self, at_work: Callable[[], set[str]]):
        """`at_work`: the jobs of all runs that may still be writing, which are asked for together."""
        self.at_work = at_work
        self.over: set[str] = set()
        self.doubtful: set[str] = set()
        self.asked_at: float | None = None

    def is_over(self, job: str) -> bool:
        """False as long as SLURM has not said so."""
        if self.asked_at is None or time.monotonic() - self.asked_at >= ASK_EVERY_SECONDS:
            self.ask()
        return job in self.over

    def doubt(self, job: str) -> None:
        """Ask again: its training has written something, and a job that is queued again keeps its number."""
        self.doubtful.add(job)

    def ask(self) -> None:
        asked = (self.at_work() - self.over) | self.doubtful
        self.asked_at = time.monotonic()
        if asked and (listed := in_queue(asked)) is not None:
            self.over, self.doubtful = (self.over - asked) | (asked - listed), set()


def in_queue(jobs: set[str]) -> set[str] | None:
    """Those that wait or run; None where SLURM does not tell."""
    if not shutil.which("squeue"):
        return None
    command = ["squeue", "--noheader", "--format=%A", f"--jobs={','.join(sorted(jobs))}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWERS_WITHIN_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode and "Invalid job id" not in done.stderr:  # what it says of a single one that has ended long ago
        return None
    return set(done.stdout.split())
