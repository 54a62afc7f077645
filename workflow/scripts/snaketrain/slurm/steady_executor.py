"""The executor of Snakemake's SLURM plugin, made to outlast outages of slurmctld, limits on submission, and the end of snakemake itself.

On its own the plugin forgets its jobs when SLURM does not answer, waits forever for a job that has left squeue or was preempted
for good, counts every submission that SLURM refuses temporarily as a failed job, which uses up `retries` within seconds,
resubmits jobs that somebody has cancelled, and submits once more what a killed workflow has left in the queue.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snaketrain.slurm.client import SlurmError, comment, wait_for_end
from snaketrain.slurm.failures import Failure, failure
from snaketrain.slurm.jobs import Work
from snaketrain.slurm.left_over import Left, LeftOver
from snaketrain.slurm.submissions import Stamp, Submission, SubmittingExecutor, stamps

if TYPE_CHECKING:
    from snakemake.jobs import Job

STATE = re.compile(r"SLURM status is: '(\w+)")  # in what the plugin reports of a failed job
WAKING_SECONDS = 0.2
LOOKS_UNTIL_LOST = 2  # squeue may not list a job yet that was submitted a moment ago
NOT_REQUEUED = ("PREEMPTED", "NODE_FAIL")  # final states, where partition or site does not requeue; the plugin waits for that


class SteadyExecutor(SubmittingExecutor):
    left_over: LeftOver  # given to the class, since Snakemake makes the instance

    def __init__(self, *arguments: object) -> None:
        self.submissions = self.left_over.submissions
        self.outputs_before: dict[str, dict[str, Stamp]] = {}  # of each job, when it was submitted
        self.looks_lost: dict[str, int] = {}  # how often in a row a job was not in the queue
        self.silent_since: float | None = None  # SLURM does not answer
        super().__init__(*arguments, slurm=self.left_over.slurm)

    # --- jobs that are submitted, or adopted

    def run_job(self, job: "Job") -> None:
        try:
            if left := self.left_over.take(job):
                self.adopt(job, left)
            else:
                self.submit(job)
        except Exception as error:  # nobody looks at the thread that this runs in
            self._report_job_error_threadsafe(SubmittedJobInfo(job), f"The job was not submitted: {type(error).__name__}: {error} ")

    def adopt(self, job: "Job", left: Left) -> None:
        """Go on with a job that an earlier workflow has submitted, or take its results."""
        earlier = left.submission
        job_info = SubmittedJobInfo(job, earlier.number, {"slurm_logfile": Path(earlier.log), "adopted": earlier})
        if left.is_done:
            self.logger.info(
                f"{Work.of(comment(job))} was completed by SLURM job {earlier.number} while no workflow ran (log: {earlier.log})."
            )
            self.following[earlier.number] = job_info
            self.report_job_success(job_info)
        else:
            self.logger.info(f"{Work.of(comment(job))} continues as SLURM job {earlier.number} (log: {earlier.log}).")
            self.report_job_submission(job_info)

    def report_job_submission(self, job_info: SubmittedJobInfo, *args: object, **kwargs: object) -> None:
        number, job = job_info.external_jobid, job_info.job
        earlier: Submission | None = job_info.aux.get("adopted")
        self.outputs_before[number] = earlier.outputs if earlier else stamps(job.output)
        self.following[number] = job_info
        self.names.add(self.name_of(job))
        super().report_job_submission(job_info, *args, **kwargs)
        with self.warning_of_full_disk():
            if earlier:
                self.submissions.adopted(number)
            else:
                log, known = str(job_info.aux["slurm_logfile"]), self.fingerprints.pop(comment(job), "")
                self.submissions.submitted(Submission(number, comment(job), known, log, self.outputs_before[number]))
        if self.cancelling.is_set():  # Ctrl-C came while sbatch was at work
            self.scancel([job_info])

    def report_job_success(self, job_info: SubmittedJobInfo) -> None:
        self.forget(job_info, "COMPLETED")
        super().report_job_success(job_info)

    def report_job_error(self, job_info: SubmittedJobInfo, msg: str | None = None, **kwargs: object) -> None:
        state = STATE.search(msg or "")
        self.forget(job_info, state[1] if state else "FAILED")
        if state and (found := self.why_failed(job_info, state[1])):
            msg = f"{msg} It {found.what}. "
            if not found.worth_retrying:
                job_info.job.attempt = job_info.job.restart_times + 1  # the last one that `retries` allows
        super().report_job_error(job_info, msg, **kwargs)

    def why_failed(self, job_info: SubmittedJobInfo, state: str) -> Failure | None:
        log, asked_mb = Path(job_info.aux["slurm_logfile"]), job_info.job.resources.get("mem_mb")
        return failure(self.slurm, job_info.external_jobid, state, log, asked_mb)

    def forget(self, job_info: SubmittedJobInfo, state: str) -> None:
        """The end of a job is known."""
        number = job_info.external_jobid
        if self.following.pop(number, None):
            with self.warning_of_full_disk():
                self.submissions.ended(number, state)

    @contextlib.contextmanager
    def warning_of_full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.logger.warning(f"{error}. Should snakemake be killed, the next start may end jobs that it could adopt.")

    async def check_active_jobs(self, active_jobs: list["SubmittedJobInfo"]) -> AsyncIterator["SubmittedJobInfo"]:
        """Every job stays active until its end is known: Snakemake keeps only those that are yielded."""
        try:
            async for _ in super().check_active_jobs(active_jobs):
                pass
        except Exception as error:  # or the thread would end and the workflow wait forever
            self.logger.warning(f"The states of the SLURM jobs could not be read; they are queried again: {error}")
        unsettled = [job_info for job_info in active_jobs if job_info.external_jobid in self.following]
        states = await self.states_in_squeue() if unsettled else None
        for job_info in unsettled:
            number = job_info.external_jobid
            if states is None or not self.is_lost(number, state := states.get(number)):
                yield job_info
                continue
            how = f"SLURM has not requeued job {number} (SLURM status is: '{state}')" if state else f"SLURM no longer knows job {number}"
            if self.has_written(job_info):
                self.logger.info(f"{how}; its results are there, so it is complete.")
                self.report_job_success(job_info)
            else:
                self.report_job_error(job_info, msg=f"{how}, and it left no result. ", aux_logs=[str(job_info.aux["slurm_logfile"])])

    async def states_in_squeue(self) -> dict[str, str] | None:
        """The states of this workflow's jobs, by number; None if SLURM does not answer, or if jobs are on other clusters."""
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
        return states

    def is_lost(self, number: str, state: str | None) -> bool:
        """Whether several looks in a row found it preempted for good, or not listed, since it ended longer than MinJobAge ago."""
        self.looks_lost[number] = self.looks_lost.get(number, 0) + 1 if state in (None, *NOT_REQUEUED) else 0
        return self.looks_lost[number] >= LOOKS_UNTIL_LOST

    def has_written(self, job_info: SubmittedJobInfo) -> bool:
        """Whether all results exist and none of them dates from before this job was submitted."""
        found, before = stamps(job_info.job.output), self.outputs_before.get(job_info.external_jobid, {})
        return all(stamp is not None and stamp != before.get(path) for path, stamp in found.items())

    async def sleep(self) -> None:
        """Between two looks at the jobs, unless the workflow ends meanwhile: the plugin would sleep on, for up to three minutes."""
        pause = asyncio.ensure_future(super().sleep())
        while self.wait and not pause.done():
            await asyncio.wait({pause}, timeout=WAKING_SECONDS)
        pause.cancel()

    # --- Ctrl-C

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel the jobs and wait until they have saved; a second Ctrl-C stops waiting. `active_jobs` is empty during a look at the jobs."""
        self.cancelling.set()  # waiting submissions give up
        with self.lock:
            self.wait = False  # no more looks: the end of each job would be reported as its failure
        if self.following and self.scancel(list(self.following.values())):
            wait_for_end(self.slurm, {number: self.name_of(info.job) for number, info in self.following.copy().items()}, self.logger.info)

    def scancel(self, jobs: list[SubmittedJobInfo]) -> bool:
        """Whether SLURM has taken the order."""
        numbers = [str(info.external_jobid) for info in jobs]
        try:
            if self._submitted_job_clusters:
                super().cancel_jobs(jobs)
            else:  # the plugin would only warn if SLURM did not answer, and take jobs that ended long ago for an error
                self.slurm.cancel(*numbers)
        except (SlurmError, WorkflowError) as error:
            self.logger.error(
                f"{error}\nThe jobs keep running, and the next start of snakemake adopts them. To end them: scancel {' '.join(numbers)}"
            )
            return False
        return True
