"""Submission that outlasts outages of slurmctld and limits on submitted jobs, under names that tell what a job is.

On its own the plugin counts every submission that SLURM refuses for a moment as a failed job, which uses up `retries` within seconds.
"""

import re
import threading
import time
from typing import TYPE_CHECKING

from snakemake_executor_plugin_slurm import Executor
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snaketrain.slurm.client import OUTAGE, Slurm, SlurmError
from snaketrain.slurm.jobs import Work
from snaketrain.slurm.own_jobs import ENDED_STATES, comment, job_name, jobs_here
from snaketrain.slurm.submissions import fingerprint

if TYPE_CHECKING:
    from snakemake.jobs import Job

LIMIT = re.compile("MaxSubmitJob|GrpSubmitJob|accounting/QOS policy", re.IGNORECASE)
UNKNOWN = "Unable to contact slurm controller: it is not known whether an earlier submission was accepted"
OUTAGE_PATIENCE_SECONDS = 1800
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0


class SubmittingExecutor(Executor):  # type: ignore[misc]  # the plugin has no types
    def __init__(self, *arguments: object, slurm: Slurm) -> None:
        self.slurm = slurm
        self.following: dict[str, SubmittedJobInfo] = {}  # by number: submitted or adopted, and not known to have ended
        self.names: set[str] = set()  # of all jobs that were followed
        self.unconfirmed: set[str] = set()  # comments of jobs that SLURM may have taken although it did not say so
        self.fingerprints: dict[str, str] = {}  # of jobs that are being submitted, by comment
        self.submission = threading.local()  # this thread's current submission: its job's name, and its outcome
        self.cancelling = threading.Event()
        super().__init__(*arguments)  # last: it starts the thread that queries states

    @property
    def run_uuid(self) -> str:
        """What the plugin calls the job that it submits; and the jobs whose states it asks for.

        Its own choice is one name for all jobs of a workflow, a UUID. `--name` takes several, so a job has a name that tells what it is.
        """
        submitting: str | None = getattr(self.submission, "name", None)
        return submitting or ",".join(sorted({self.name_of(info.job) for info in self.following.copy().values()} or self.names)) or "none"

    @run_uuid.setter
    def run_uuid(self, uuid: str) -> None:
        """Set by the plugin, and not used."""

    def name_of(self, job: "Job") -> str:
        prefix = self.workflow.executor_settings.jobname_prefix
        return f"{prefix}_{job_name(job)}" if prefix else job_name(job)

    def submit(self, job: "Job") -> None:
        """Retrying during an outage or at a limit; any other refusal is reported at once."""
        started, pause, reason = time.monotonic(), FIRST_PAUSE_SECONDS, ""
        self.fingerprints[comment(job)] = fingerprint(job, self.workflow.executor_settings)
        while not self.cancelling.is_set():
            if comment(job) in self.unconfirmed and self.cancel_unconfirmed(job):
                self.unconfirmed.discard(comment(job))
            refusal = UNKNOWN if comment(job) in self.unconfirmed else self.try_to_submit(job)
            if refusal is None:
                break
            if OUTAGE.search(refusal):
                self.unconfirmed.add(comment(job))
            before, reason = reason, self.why_wait(refusal, time.monotonic() - started)
            if not reason:  # Snakemake may submit it once more
                super()._report_job_error_threadsafe(SubmittedJobInfo(job), refusal)
                return
            if reason != before:
                self.logger.warning(f"{Work.of(comment(job))} is not submitted yet: {reason}.")
            self.cancelling.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        if not reason:
            return
        if self.cancelling.is_set():
            if comment(job) in self.unconfirmed:
                self.cancel_unconfirmed(job)
        else:
            self.logger.info(f"{Work.of(comment(job))} was submitted after {time.monotonic() - started:.0f} seconds.")

    def try_to_submit(self, job: "Job") -> str | None:
        """What SLURM refuses, and why; None if it has taken the job."""
        self.submission.refusal, self.submission.name = None, self.name_of(job)
        try:
            super().run_job(job)
        finally:
            self.submission.name = None
        refusal: str | None = self.submission.refusal
        return refusal

    def _report_job_error_threadsafe(self, job_info: "SubmittedJobInfo", msg: str) -> None:
        """The plugin calls this in the thread that submits; `submit` decides whether to try again."""
        if getattr(self.submission, "name", None):
            self.submission.refusal = msg
        else:
            super()._report_job_error_threadsafe(job_info, msg)

    def why_wait(self, message: str, seconds: float) -> str:
        """Why a refused submission is worth another try; empty if it is not."""
        if OUTAGE.search(message) and seconds < OUTAGE_PATIENCE_SECONDS:
            return f"SLURM does not answer; trying again for {OUTAGE_PATIENCE_SECONDS // 60} minutes"
        if LIMIT.search(message) and self.jobs_ahead():
            return "a limit on submitted jobs is reached; trying again as long as you have jobs in the queue"
        return ""

    def cancel_unconfirmed(self, job: "Job") -> bool:
        """A job may be in the queue although the answer to its submission was lost; a second one would train in the same folder.

        Whether none is there any more: while SLURM does not answer, that is not known.
        """
        try:
            waiting = [row.number for row in jobs_here(self.slurm) if row.comment == comment(job) and row.state not in ENDED_STATES]
            if lost := [number for number in waiting if number not in self.following]:
                self.slurm.cancel(*lost)
        except SlurmError:
            return False
        return True

    def jobs_ahead(self) -> bool:
        """Whether this user has jobs in the queue, as far as is known. Many waiting submissions ask this at once."""
        try:
            return self.slurm.has_jobs(max_age_seconds=FIRST_PAUSE_SECONDS) or self.slurm.has_jobs()
        except SlurmError:
            return True
