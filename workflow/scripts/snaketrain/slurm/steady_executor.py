"""The executor of Snakemake's SLURM plugin, made to outlast outages of slurmctld and limits on submission.

On its own the plugin forgets its jobs when SLURM does not answer, waits forever for a job that has left squeue, counts every
submission that SLURM refuses temporarily as a failed job, which uses up `retries` within seconds, and resubmits jobs that somebody
has cancelled.
"""

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from snakemake_executor_plugin_slurm import Executor

from snaketrain.slurm.checks import NOT_RETRIED, comment
from snaketrain.slurm.client import Slurm, SlurmError

if TYPE_CHECKING:
    from snakemake.jobs import Job
    from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

OUTAGE = re.compile(
    "unable to contact|unable to connect|connection refused|connection failure|socket timed out|zero bytes were transmitted|"
    "transport endpoint|backup controller|temporarily un(able|available)",
    re.IGNORECASE,
)
LIMIT = re.compile("MaxSubmitJob|GrpSubmitJob|accounting/QOS policy", re.IGNORECASE)
STATE = re.compile(r"SLURM status is: '(\w+)")  # in what the plugin reports of a failed job
OUTAGE_PATIENCE_SECONDS = 1800
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0
LOOKS_UNTIL_GONE = 2  # squeue may not list a job yet that was submitted a moment ago


class SteadyExecutor(Executor):  # type: ignore[misc]  # the plugin has no types
    def __init__(self, *arguments: object) -> None:
        self.slurm = Slurm()
        self.settled: set[int] = set()  # jobs whose end was reported, by id() of their records
        self.outputs_before: dict[str, list[tuple[int, int] | None]] = {}  # of each job, when it was submitted
        self.looks_without: dict[str, int] = {}  # how often in a row squeue has not listed a job
        self.silent_since: float | None = None  # SLURM does not answer
        self.submission = threading.local()  # the outcome of this thread's current submission
        self.cancelling = threading.Event()
        super().__init__(*arguments)  # last: it starts the thread that queries states

    # --- jobs that were submitted

    def report_job_submission(self, job_info: "SubmittedJobInfo", *args: object, **kwargs: object) -> None:
        self.outputs_before[job_info.external_jobid] = stamps(job_info)
        super().report_job_submission(job_info, *args, **kwargs)

    def report_job_success(self, job_info: "SubmittedJobInfo") -> None:
        self.settled.add(id(job_info))
        super().report_job_success(job_info)

    def report_job_error(self, job_info: "SubmittedJobInfo", msg: str | None = None, **kwargs: object) -> None:
        self.settled.add(id(job_info))
        state = STATE.search(msg or "")
        if state and (advice := NOT_RETRIED.get(state[1])):
            msg = f"{msg} It {advice}. "
            job_info.job.attempt = job_info.job.restart_times + 1  # the last one that `retries` allows
        super().report_job_error(job_info, msg, **kwargs)

    async def check_active_jobs(self, active_jobs: list["SubmittedJobInfo"]) -> AsyncIterator["SubmittedJobInfo"]:
        """Every job stays active until its end is known: Snakemake keeps only those that are yielded."""
        self.settled.clear()
        try:
            async for _ in super().check_active_jobs(active_jobs):
                pass
        except Exception as error:  # or the thread would end and the workflow wait forever
            self.logger.warning(f"The states of the SLURM jobs could not be read; they are queried again: {error}")
        unsettled = [job_info for job_info in active_jobs if id(job_info) not in self.settled]
        listed = await self.jobs_in_squeue() if unsettled else None
        for job_info in unsettled:
            if listed is None or not self.has_vanished(job_info, listed):
                yield job_info
            elif self.has_written(job_info):
                self.logger.info(f"SLURM no longer knows job {job_info.external_jobid}; its results are there, so it is complete.")
                self.report_job_success(job_info)
            else:
                self.report_job_error(
                    job_info,
                    msg=f"SLURM no longer knows job {job_info.external_jobid}, and it left no result. ",
                    aux_logs=[str(job_info.aux["slurm_logfile"])],
                )

    async def jobs_in_squeue(self) -> set[str] | None:
        """The numbers of this workflow's jobs; None if SLURM does not answer, or if jobs are on other clusters."""
        if self._submitted_job_clusters:
            return None
        now = time.monotonic()
        try:
            states = await asyncio.to_thread(self.slurm.states, self.run_uuid)
        except SlurmError:
            if self.silent_since is None:
                self.silent_since = now
                self.logger.warning("SLURM does not answer. Its jobs keep running; their states are queried again when it does.")
            return None
        if self.silent_since is not None:
            self.logger.warning(f"SLURM answers again, after {now - self.silent_since:.0f} seconds.")
            self.silent_since = None
        return set(states)

    def has_vanished(self, job_info: "SubmittedJobInfo", listed: set[str]) -> bool:
        """Whether squeue has not listed it several times in a row: it ended longer than MinJobAge ago."""
        number = job_info.external_jobid
        self.looks_without[number] = 0 if number in listed else self.looks_without.get(number, 0) + 1
        return self.looks_without[number] >= LOOKS_UNTIL_GONE

    def has_written(self, job_info: "SubmittedJobInfo") -> bool:
        """Whether all results exist and none of them dates from before this job was submitted."""
        found = stamps(job_info)
        before = self.outputs_before.get(job_info.external_jobid, [None] * len(found))
        return all(now is not None and now != then for now, then in zip(found, before, strict=True))

    # --- jobs that are being submitted

    def run_job(self, job: "Job") -> None:
        """Submit a job, retrying during an outage or at a limit; any other refusal is reported at once."""
        started, pause, reason = time.monotonic(), FIRST_PAUSE_SECONDS, ""
        while not self.cancelling.is_set():
            if reason:
                self.cancel_unconfirmed(job)
            self.submission.refusal, self.submission.under_way = None, True
            try:
                super().run_job(job)
            finally:
                self.submission.under_way = False
            if (refusal := self.submission.refusal) is None:
                break
            before, reason = reason, self.why_wait(refusal[1], time.monotonic() - started)
            if not reason:
                super()._report_job_error_threadsafe(*refusal)
                return
            if reason != before:
                self.logger.warning(f"Job {job.jobid} ({comment(job)}) is not submitted yet: {reason}.")
            self.cancelling.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        if reason and not self.cancelling.is_set():
            self.logger.info(f"Job {job.jobid} was submitted after {time.monotonic() - started:.0f} seconds.")

    def _report_job_error_threadsafe(self, job_info: "SubmittedJobInfo", msg: str) -> None:
        """The plugin calls this in the thread that submits; `run_job` decides whether to try again."""
        if getattr(self.submission, "under_way", False):
            self.submission.refusal = (job_info, msg)
        else:
            super()._report_job_error_threadsafe(job_info, msg)

    def why_wait(self, message: str, seconds: float) -> str:
        """Why a refused submission is worth another try; empty if it is not."""
        if OUTAGE.search(message) and seconds < OUTAGE_PATIENCE_SECONDS:
            return f"SLURM does not answer; trying again for {OUTAGE_PATIENCE_SECONDS // 60} minutes"
        if LIMIT.search(message) and self.jobs_ahead():
            return "a limit on submitted jobs is reached; trying again as long as you have jobs in the queue"
        return ""

    def cancel_unconfirmed(self, job: "Job") -> None:
        """A job may be in the queue although the answer to its submission was lost; a second one would train in the same folder."""
        with contextlib.suppress(SlurmError):
            comments = self.slurm.comments(self.run_uuid)
            with self.lock:
                known = {job_info.external_jobid for job_info in self.active_jobs}
            if lost := [number for number, text in comments.items() if text == comment(job) and number not in known]:
                self.slurm.cancel(*lost)

    def jobs_ahead(self) -> bool:
        """Whether this user has jobs in the queue, as far as is known. Many waiting submissions ask this at once."""
        try:
            return self.slurm.has_jobs(max_age_seconds=FIRST_PAUSE_SECONDS) or self.slurm.has_jobs()
        except SlurmError:
            return True

    def cancel_jobs(self, active_jobs: list["SubmittedJobInfo"]) -> None:
        self.cancelling.set()  # waiting submissions give up
        super().cancel_jobs(active_jobs)


def stamps(job_info: "SubmittedJobInfo") -> list[tuple[int, int] | None]:
    """A stamp for each result, which changes whenever it is written; None if it does not exist."""
    paths = [Path(path) for path in job_info.job.output]
    return [(path.stat().st_mtime_ns, path.stat().st_ino) if path.exists() else None for path in paths]
