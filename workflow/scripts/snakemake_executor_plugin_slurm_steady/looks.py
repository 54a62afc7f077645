"""Looks at the jobs: one answer of squeue for all of them, and what follows if SLURM does not answer, or no longer knows a job.

On its own the plug-in forgets its jobs when SLURM does not answer, and waits forever for one that has left squeue or was preempted for good.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snakemake_executor_plugin_slurm_steady.following import Following
from snakemake_executor_plugin_slurm_steady.monitor import JobMonitor
from snaketrain.orchestration.submissions import all_written
from snaketrain.slurm.client import ENDED_STATES, OUTAGE, SlurmError, of_this_folder

WAKING_SECONDS = 0.5
LOOKS_UNTIL_LOST = 2  # squeue may not list a job yet that was submitted a moment ago
NOT_REQUEUED = ("PREEMPTED", "NODE_FAIL")  # final states, where partition or site does not requeue


class Looking(Following):
    monitor: JobMonitor | None = None
    silent_since: float | None = None  # SLURM does not answer

    def __post_init__(self) -> None:
        if self.workflow.executor_settings.status_command:
            self.logger.warning(
                "slurm-steady-status-command has no effect: sacct is asked where squeue no longer lists a job. Remove it from the profile."
            )
        self.workflow.executor_settings.status_command = None  # or the plug-in would advise one of squeue and sacct
        self.looks_lost: dict[str, int] = {}  # how often in a row a job was not in the queue
        super().__post_init__()

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncIterator[SubmittedJobInfo]:
        """Every job stays active until its end is known: Snakemake keeps only those that are yielded."""
        self.next_seconds_between_status_checks = self.workflow.executor_settings.init_seconds_before_status_checks
        states = await self.states_in_squeue() if active_jobs else None
        answers = states is not None
        for job_info in active_jobs:
            state = (states or {}).get(job_info.external_jobid)
            try:
                is_lost = answers and await self.is_lost(job_info.external_jobid, state)
            except SlurmError as error:
                is_lost, answers = False, not OUTAGE.search(str(error))  # each of the others would wait for no answer as long
            if is_lost:
                await self.report_lost(job_info, state)
            elif state == "COMPLETED":
                self.report_job_success(job_info)
            elif state and state in ENDED_STATES and state not in NOT_REQUEUED:
                self.report_end(job_info, state, f"SLURM-job '{job_info.external_jobid}' failed, SLURM status is: '{state}'. ")
            else:
                yield job_info

    async def states_in_squeue(self) -> dict[str, str] | None:
        """The states of this user's jobs, by number; None if SLURM does not answer."""
        now = time.monotonic()
        try:
            states = await asyncio.to_thread(self.look)
        except SlurmError:
            if self.silent_since is None:
                self.silent_since = now
                self.logger.warning("SLURM does not answer. Its jobs keep running; their states are queried again when it does.")
            return None
        if self.silent_since is not None:
            self.logger.warning(f"SLURM answers again, after {now - self.silent_since:.0f} seconds.")
            self.silent_since = None
        return states

    def look(self) -> dict[str, str]:
        rows = self.slurm.user_jobs()
        if self.monitor:
            self.monitor.tell(of_this_folder(self.slurm, rows))
        return {row.number: row.state for row in rows}

    async def is_lost(self, number: str, state: str | None) -> bool:
        """Whether several looks in a row found it preempted for good, or not listed, since it ended longer than MinJobAge ago.

        squeue may also answer nothing, with exit 0, while all jobs run: scontrol confirms that there is none.
        """
        self.looks_lost[number] = self.looks_lost.get(number, 0) + 1 if state in (None, *NOT_REQUEUED) else 0
        if self.looks_lost[number] < LOOKS_UNTIL_LOST:
            return False
        return state is not None or await asyncio.to_thread(self.slurm.is_over, number)

    async def report_lost(self, job_info: SubmittedJobInfo, state: str | None) -> None:
        number = job_info.external_jobid
        with contextlib.suppress(SlurmError):  # nothing may run beside what is submitted in its place
            await asyncio.to_thread(self.slurm.cancel, number)
        known = state if state else await asyncio.to_thread(self.slurm.ended_as, number)
        how = f"SLURM has not requeued job {number}" if state else f"SLURM no longer knows job {number}"
        how += f" (SLURM status is: '{known}')" if known else ""
        if all_written(job_info.job.output, job_info.aux["outputs_before"]):
            self.logger.info(f"{how}; its results are there, so it is complete.")
            self.report_job_success(job_info)
        else:
            self.report_end(job_info, known, f"{how}, and it left no result. ")

    def report_end(self, job_info: SubmittedJobInfo, state: str, told: str) -> None:
        job_info.aux["state"] = state
        self.report_job_error(job_info, msg=told, aux_logs=[str(job_info.aux["slurm_logfile"])])

    async def sleep(self) -> None:
        """Between two looks at the jobs, unless the workflow ends meanwhile."""
        pause = asyncio.ensure_future(super().sleep())
        while self.wait and not pause.done():
            await asyncio.wait({pause}, timeout=WAKING_SECONDS)
        pause.cancel()
