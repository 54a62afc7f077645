"""The executor of Snakemake's SLURM plugin, made to outlast outages of slurmctld, limits on submission, and the end of snakemake itself.

On its own the plugin forgets its jobs when SLURM does not answer, waits forever for a job that has left squeue or was preempted
for good, counts every submission that SLURM refuses temporarily as a failed job, which uses up `retries` within seconds,
resubmits jobs that somebody has cancelled, and submits once more what a killed workflow has left in the queue.
"""

import asyncio
import contextlib
import math
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from snakemake_executor_plugin_slurm import Executor
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snakemake_executor_plugin_slurm_steady.left_over import Left, LeftOver, StillFollowed
from snakemake_executor_plugin_slurm_steady.monitor import JobMonitor, failure
from snakemake_executor_plugin_slurm_steady.submitting import (
    AWAITS_NODES,
    LIMIT,
    REGISTERING_SECONDS,
    awaits_nodes,
    fingerprint,
    is_done,
    jobs_ahead,
    misquoted,
    passed_to_jobs,
    reads_what_is_there,
    refusals,
    to_submit,
)
from snaketrain.orchestration import executor_hooks
from snaketrain.orchestration.submissions import Stamp, Submission, Submissions, all_written, stamps
from snaketrain.runtime.manifests import make_private_folder
from snaketrain.slurm.client import ENDED_STATES, OUTAGE, Slurm, SlurmError, jobs_here, wait_for_end
from snaketrain.slurm.jobs import Work, comment, job_name

if TYPE_CHECKING:
    import logging

    from snakemake.jobs import Job
    from snakemake.workflow import Workflow

NO_NUMBER = re.compile("No valid SLURM job ID|Multiple possible SLURM job IDs")  # what the plugin says of an answer of sbatch
NO_NUMBER_PATIENCE_SECONDS = 300
UNKNOWN = "Unable to contact slurm controller: it is not known whether an earlier submission was accepted"
OUTAGE_PATIENCE_SECONDS = 1800
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0
STATE = re.compile(r"SLURM status is: '(\w+)")  # in what the plugin reports of a failed job
WAKING_SECONDS = 0.2
LOOKS_UNTIL_LOST = 2  # squeue may not list a job yet that was submitted a moment ago
NOT_REQUEUED = ("PREEMPTED", "NODE_FAIL")  # final states, where partition or site does not requeue; the plugin waits for that


class SteadyExecutor(Executor):  # type: ignore[misc]  # the plugin has no types
    def __init__(self, workflow: "Workflow", logger: "logging.Logger") -> None:
        try:
            self.hooks = executor_hooks.registered()
        except LookupError as error:
            raise WorkflowError(str(error)) from None
        self.slurm, self.submissions = Slurm(), Submissions()
        self.left_over = LeftOver(self.slurm, self.submissions, logger.info)
        self.following: dict[str, SubmittedJobInfo] = {}  # by number: submitted or adopted, and not known to have ended
        self.names: set[str] = set()  # of all jobs that were followed
        self.unconfirmed: set[str] = set()  # comments of jobs that SLURM may have taken although it did not say so
        self.waiting: dict[str, Job] = {}  # by the reason why jobs are not submitted yet, the one of which that was told
        self.fingerprints: dict[str, str] = {}  # of jobs that are being submitted, by comment
        self.submission = threading.local()  # this thread's current submission: its job's name, and its outcome
        self.cancelling = threading.Event()
        self.outputs_before: dict[str, dict[str, Stamp]] = {}  # of each job, when it was submitted
        self.looks_lost: dict[str, int] = {}  # how often in a row a job was not in the queue
        self.silent_since: float | None = None  # SLURM does not answer
        super().__init__(workflow, logger)  # after all these: it starts the thread that queries states
        if any(True for _ in workflow.dag.needrun_jobs()):
            self.begin(workflow)

    def begin(self, workflow: "Workflow") -> None:
        """Before the first job: refuse what cannot run, adopt or end what a killed workflow has left, and watch the jobs from now on."""
        dag, settings = workflow.dag, workflow.executor_settings
        submitted, logs = to_submit(dag), Path(settings.logdir or ".snakemake/slurm_logs")
        try:
            refused = misquoted(passed_to_jobs(workflow), not settings.pass_command_as_script) or refusals(
                self.slurm, submitted, settings, self.logger.info
            )
            self.hooks.check(refused)
            self.left_over.settle(submitted, settings, partial(reads_what_is_there, dag), partial(is_done, dag, self.hooks.is_done))
        except (SlurmError, StillFollowed) as error:
            raise WorkflowError(str(error)) from None
        for folder in (logs.parent, logs):
            make_private_folder(folder)
        monitor = JobMonitor(self.slurm, logs, self.logger.info, *self.hooks.watched(), self.cancelling.is_set)
        threading.Thread(target=monitor.run, daemon=True).start()

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
        if state:
            log, asked_mb = Path(job_info.aux["slurm_logfile"]), job_info.job.resources.get("mem_mb")
            if found := failure(self.slurm, job_info.external_jobid, state[1], log, asked_mb):
                msg = f"{msg} It {found.what}. {self.exclude_node_of(job_info) if found.node_unfit else ''}"
                if not found.worth_retrying:
                    job_info.job.attempt = job_info.job.restart_times + 1  # the last one that `retries` allows
        super().report_job_error(job_info, msg, **kwargs)

    def exclude_node_of(self, job_info: SubmittedJobInfo) -> str:
        """Let no further job run its script on the node on which this one could not."""
        try:
            node = self.slurm.allocation(job_info.external_jobid).script_host
        except SlurmError:
            return ""
        self._failed_nodes |= {node} - {""}  # the plugin's, for `--exclude`
        return (
            f"Until snakemake is started again, jobs are submitted with --exclude={node}, unless compute.sbatch has its own. "
            if node
            else ""
        )

    def forget(self, job_info: SubmittedJobInfo, state: str) -> None:
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

    # --- submission that outlasts outages of slurmctld and limits on submitted jobs

    def submit(self, job: "Job") -> None:
        """Retrying during an outage or at a limit; any other refusal is reported at once."""
        started, pause, reason = time.monotonic(), FIRST_PAUSE_SECONDS, ""
        since = started  # the reason is this one
        self.fingerprints[comment(job)] = fingerprint(job, self.workflow.executor_settings)
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

    def why_wait(self, message: str) -> tuple[str, float]:
        """Why a refused submission is worth other tries, and for how many seconds."""
        if OUTAGE.search(message):
            return f"SLURM does not answer; trying again for {OUTAGE_PATIENCE_SECONDS // 60} minutes", OUTAGE_PATIENCE_SECONDS
        if NO_NUMBER.search(message):
            how = "sbatch did not say which number it has; it is cancelled, if it is in the queue, and submitted again"
            return how, NO_NUMBER_PATIENCE_SECONDS
        if awaits_nodes(self.slurm, message, FIRST_PAUSE_SECONDS):
            return f"{AWAITS_NODES}; trying again for {REGISTERING_SECONDS // 60} minutes", REGISTERING_SECONDS
        if LIMIT.search(message) and (self.following or jobs_ahead(self.slurm, FIRST_PAUSE_SECONDS)):
            return "a limit on submitted jobs is reached; trying again as long as you have jobs in the queue", math.inf
        return "", 0

    def settle_unconfirmed(self, job: "Job") -> None:
        if comment(job) in self.unconfirmed and self.cancel_unconfirmed(job):
            self.unconfirmed.discard(comment(job))

    def cancel_unconfirmed(self, job: "Job") -> bool:
        """A job may be in the queue although the answer to its submission was lost; a second one would train in the same folder.

        Whether none is there any more: while SLURM does not answer, that is not known, and one look that finds none proves nothing, nor do
        several that find none of the jobs that are followed.
        """
        for look in range(LOOKS_UNTIL_LOST):
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

    # --- looks at the jobs

    async def check_active_jobs(self, active_jobs: list["SubmittedJobInfo"]) -> AsyncIterator["SubmittedJobInfo"]:
        """Every job stays active until its end is known: Snakemake keeps only those that are yielded."""
        states = await self.states_in_squeue() if active_jobs else None
        if self.silent_since is None:  # or the plugin would warn of each of its attempts, at each look
            try:
                async for _ in super().check_active_jobs(active_jobs):
                    pass
            except Exception as error:  # or the thread would end and the workflow wait forever
                self.logger.warning(f"The states of the SLURM jobs could not be read; they are queried again: {error}")
        unsettled = [job_info for job_info in active_jobs if job_info.external_jobid in self.following]
        for job_info in unsettled:
            number, state = job_info.external_jobid, (states or {}).get(job_info.external_jobid)
            try:
                is_lost = states is not None and await self.is_lost(number, state)
            except SlurmError as error:
                is_lost = False
                if OUTAGE.search(str(error)):
                    states = None  # each of the others would wait for no answer as long
            if not is_lost:
                yield job_info
                continue
            with contextlib.suppress(SlurmError):  # nothing may run beside what is submitted in its place
                await asyncio.to_thread(self.slurm.cancel, number)
            how = f"SLURM has not requeued job {number} (SLURM status is: '{state}')" if state else f"SLURM no longer knows job {number}"
            if all_written(job_info.job.output, self.outputs_before.get(number, {})):
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

    async def is_lost(self, number: str, state: str | None) -> bool:
        """Whether several looks in a row found it preempted for good, or not listed, since it ended longer than MinJobAge ago.

        squeue may also answer nothing, with exit 0, while all jobs run: scontrol confirms that there is none.
        """
        self.looks_lost[number] = self.looks_lost.get(number, 0) + 1 if state in (None, *NOT_REQUEUED) else 0
        if self.looks_lost[number] < LOOKS_UNTIL_LOST:
            return False
        return state is not None or await asyncio.to_thread(self.slurm.is_over, number)

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
