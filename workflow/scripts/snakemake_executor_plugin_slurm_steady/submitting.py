"""Submissions that outlast outages of slurmctld and limits on submitted jobs.

The plug-in counts every submission that SLURM refuses for a while as a failed job, which uses up `retries` within seconds.
"""

import math
import re
import threading
import time
from typing import TYPE_CHECKING

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snakemake_executor_plugin_slurm_steady.checks import (
    AWAITS_NODES,
    FULL_QUEUE,
    LIMIT,
    NO_SUCH_NODES,
    REGISTERING_SECONDS,
    awaits_nodes,
    jobs_ahead,
)
from snakemake_executor_plugin_slurm_steady.following import Following
from snaketrain.slurm.client import ENDED_STATES, OUTAGE, SlurmError, jobs_here
from snaketrain.slurm.jobs import Work, comment

if TYPE_CHECKING:
    from snakemake.jobs import Job

NO_NUMBER = re.compile("No valid SLURM job ID|Multiple possible SLURM job IDs")  # what the plug-in says of an answer of sbatch
NO_NUMBER_PATIENCE_SECONDS = 300
UNKNOWN = "Unable to contact slurm controller: it is not known whether an earlier submission was accepted"
OUTAGE_PATIENCE_SECONDS = 1800
OTHERS_PATIENCE_SECONDS = 1800  # with a limit that jobs fill which are not this user's: it may also be one that admits no job
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0
LOOKS_UNTIL_ABSENT = 2  # squeue may not list a job yet that was submitted a moment ago


class Patient(Following):
    def __post_init__(self) -> None:
        self.unconfirmed: set[str] = set()  # comments of jobs that SLURM may have taken although it did not say so
        self.waiting: dict[str, Job] = {}  # by the reason why jobs are not submitted yet, the one of which that was told
        self.attempt = threading.local()  # this thread's: why SLURM refuses it
        super().__post_init__()

    def run_job(self, job: "Job") -> None:
        """Retrying during an outage or at a limit; any other refusal is reported at once."""
        started, pause, reason = time.monotonic(), FIRST_PAUSE_SECONDS, ""
        since = started  # the reason is this one
        while not self.cancelling.is_set():
            self.settle_unconfirmed(job)
            refusal = UNKNOWN if comment(job) in self.unconfirmed else self.try_to_submit(job)
            if refusal is None:
                break
            if OUTAGE.search(refusal) or NO_NUMBER.search(refusal):
                self.unconfirmed.add(comment(job))
            before, (reason, patience) = reason, self.why_wait(refusal)
            since = since if reason == before else time.monotonic()
            if time.monotonic() - since >= patience:  # Snakemake may submit it once more
                self.settle_unconfirmed(job)
                super()._report_job_error_threadsafe(SubmittedJobInfo(job), refusal)
                return
            if reason != before and self.waiting.setdefault(reason, job) is job:  # the first of all jobs that wait for it
                self.logger.warning(f"{Work.of(comment(job))} is not submitted yet: {reason}.")
            self.cancelling.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        if not reason:
            return
        told = [why for why, first in self.waiting.copy().items() if first is job and self.waiting.pop(why)]
        if self.cancelling.is_set():
            self.settle_unconfirmed(job)
        elif told:
            self.logger.info(f"{Work.of(comment(job))} was submitted after {time.monotonic() - started:.0f} seconds.")

    def try_to_submit(self, job: "Job") -> str | None:
        """What SLURM refuses, and why; None if it has taken the job."""
        self.attempt.refused = refused = list[str]()
        try:
            super().run_job(job)
        finally:
            self.attempt.refused = None
        return refused[-1] if refused else None

    def _report_job_error_threadsafe(self, job_info: SubmittedJobInfo, msg: str) -> None:
        """The plug-in calls this in the thread that submits; `run_job` decides whether to try again."""
        if (refused := getattr(self.attempt, "refused", None)) is not None:
            refused.append(msg)
        else:
            super()._report_job_error_threadsafe(job_info, msg)

    def why_wait(self, message: str) -> tuple[str, float]:
        """Why a refused submission is worth other tries, and for how many seconds."""
        if OUTAGE.search(message):
            return f"SLURM does not answer; trying again for {OUTAGE_PATIENCE_SECONDS // 60} minutes", OUTAGE_PATIENCE_SECONDS
        if NO_NUMBER.search(message):
            how = "sbatch did not say which number it has; it is cancelled, if it is in the queue, and submitted again"
            return how, NO_NUMBER_PATIENCE_SECONDS
        if awaits_nodes(self.slurm, message, FIRST_PAUSE_SECONDS):
            return f"{AWAITS_NODES}; trying again for {REGISTERING_SECONDS // 60} minutes", REGISTERING_SECONDS
        if NO_SUCH_NODES in message:
            return "SLURM says that no nodes can run it; trying once more, as they may have registered since", FIRST_PAUSE_SECONDS
        if LIMIT.search(message) and (self.following or jobs_ahead(self.slurm, FIRST_PAUSE_SECONDS)):
            return "a limit on submitted jobs is reached; trying again as long as you have jobs in the queue", math.inf
        if FULL_QUEUE.search(message):
            how = f"a limit on submitted jobs is reached, although you have none in the queue; trying again for {OTHERS_PATIENCE_SECONDS // 60} minutes"
            return how, OTHERS_PATIENCE_SECONDS
        return "", 0

    def settle_unconfirmed(self, job: "Job") -> None:
        if comment(job) in self.unconfirmed and self.cancel_unconfirmed(job):
            self.unconfirmed.discard(comment(job))

    def cancel_unconfirmed(self, job: "Job") -> bool:
        """A job may be in the queue although the answer to its submission was lost; a second one would train in the same folder.

        Whether none is there any more: while SLURM does not answer, that is not known, and one look that finds none proves nothing, nor do
        several that find none of the jobs that are followed.
        """
        for look in range(LOOKS_UNTIL_ABSENT):
            if look:
                self.cancelling.wait(FIRST_PAUSE_SECONDS)
            try:
                followed, listed = set(self.following.copy()), jobs_here(self.slurm)
                waiting = [row.number for row in listed if row.comment == comment(job) and row.state not in ENDED_STATES]
                if lost := [number for number in waiting if number not in self.following]:
                    self.slurm.cancel(*lost)
                    return True
            except SlurmError:
                return False
            if followed and followed.isdisjoint(row.number for row in listed):
                return False
        return True
