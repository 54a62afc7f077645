"""What a killed workflow left behind: jobs that are what would be submitted are adopted; the others save and end before new ones start."""

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snakemake_executor_plugin_slurm_steady.checks import fingerprint
from snakemake_executor_plugin_slurm_steady.following import Following
from snaketrain.orchestration.stages import results_of_work
from snaketrain.orchestration.submissions import Submission, Submissions
from snaketrain.slurm.client import ENDED_STATES, ENDING_SECONDS, Slurm, SlurmError, jobs_here, wait_for_end
from snaketrain.slurm.jobs import QueuedJob, Work, comment

if TYPE_CHECKING:
    from snakemake.jobs import Job
    from snakemake_executor_plugin_slurm import ExecutorSettings

ALIVE_STATES = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED")  # in another, a job is about to end or to be requeued


@dataclass(frozen=True)
class Left:
    """A job that need not be submitted."""

    submission: Submission
    is_done: bool


class LeftOver:
    def __init__(self, slurm: Slurm, submissions: Submissions, report: Callable[[str], None]):
        self.slurm, self.submissions, self.report = slurm, submissions, report
        self.kept: dict[str, Left] = {}  # by comment
        self.over: set[str] = set()  # numbers of jobs that no workflow saw end, and of which scontrol says that they have

    def take(self, job: "Job") -> Left | None:
        """What is left of this job, once: a job that is tried again is submitted."""
        return self.kept.pop(comment(job), None)

    def running(self) -> dict[str, str]:
        """The jobs to be adopted that have not been taken yet: numbers and names."""
        return {left.submission.number: str(Work.of(name)) for name, left in self.kept.copy().items() if not left.is_done}

    def settle(
        self,
        jobs: Iterable["Job"],
        settings: "ExecutorSettings",
        is_ready: Callable[["Job"], bool],
        is_done: Callable[["Job"], bool],
    ) -> None:
        """Before the first submission. `is_ready`: nothing that the job reads will be made again; `is_done`: its results are those that it would make."""
        wanted, earlier = {comment(job): job for job in jobs}, self.submissions.latest()
        queued = self._settled_in_queue(set().union(*(results_of_work(Work.of(name)) for name in wanted)), earlier.values())
        self._refuse_if_followed(queued, earlier)
        to_end = []
        for row in queued:
            job, made = wanted.get(row.comment), earlier.get(row.comment)
            if job and made and made.number == row.number and is_ready(job) and fingerprint(job, settings) == made.fingerprint:
                self.kept[row.comment] = Left(made, is_done=False)
                self.report(
                    f"{row} was left by an earlier workflow in this folder and is what would be submitted now: it is adopted. Log: {made.log}"
                )
            else:
                to_end.append(row)
        for name, job in wanted.items():
            made = earlier.get(name)
            if made and not made.state and all(row.comment != name for row in queued) and is_ready(job) and is_done(job):
                self.kept[name] = Left(made, is_done=True)
        self._end(to_end)

    def _settled_in_queue(self, results: set[tuple[str, str]], earlier: Collection[Submission]) -> list[QueuedJob]:
        """The jobs that write these results, once none of them is about to end, or to be queued again."""
        end, reported = time.monotonic() + ENDING_SECONDS, False
        while True:
            queued = [row for row in self._listed(earlier) if row.state not in ENDED_STATES]
            found = [row for row in queued if results_of_work(row.work) & results]
            if not (ending := [row for row in found if row.state not in ALIVE_STATES]) or time.monotonic() >= end:
                break
            if not reported:
                self.report(f"Waiting for {', '.join(map(str, ending))}, left by an earlier workflow in this folder, to end.")
                reported = True
            time.sleep(1)
        if unneeded := [row for row in queued if row not in found and row.state in ALIVE_STATES]:  # of runs that were removed, for example
            self.report(
                f"{', '.join(map(str, unneeded))}: left by an earlier workflow in this folder, and not among the jobs to do now. Not ended; to "
                f"end what is not wanted any more: scancel {' '.join(row.number for row in unneeded)}"
            )
        return found

    def _listed(self, earlier: Collection[Submission]) -> list[QueuedJob]:
        """The jobs of this folder: squeue may answer nothing, with exit 0, so that it is asked again while scontrol knows more.

        What is known of earlier jobs may come from another folder, of which this one is a copy, and their numbers may come again.
        """
        end = time.monotonic() + ENDING_SECONDS
        while True:
            rows = jobs_here(self.slurm)
            listed = {row.number for row in rows}
            unlisted = [made.number for made in earlier if not made.state and made.number not in listed | self.over]
            self.over |= {number for number in unlisted if self.slurm.is_over(number, folder=".")}
            missing = [number for number in unlisted if number not in self.over]
            if not missing:
                return rows
            if time.monotonic() >= end:
                raise SlurmError(
                    f"Job {missing[0]} of this folder: squeue does not list it, but `scontrol show job {missing[0]}` says that it has not ended. Try again later."
                )
            time.sleep(1)

    def _refuse_if_followed(self, queued: list[QueuedJob], earlier: dict[str, Submission]) -> None:
        for row in queued:
            made = earlier.get(row.comment)
            if made and made.number == row.number and made.is_followed and not made.is_ours:
                raise WorkflowError(
                    f"{row}: snakemake (process {made.pid}) still follows it in this folder. End that one first (Ctrl-C, or kill {made.pid}), "
                    "or let it finish."
                )

    def _end(self, rows: list[QueuedJob]) -> None:
        if not rows:
            return
        self.report(
            f"{', '.join(map(str, rows))}: left by an earlier workflow in this folder with other settings, resources, code or inputs than now. "
            "Cancelling; a training saves, and resumes in a new job."
        )
        self.slurm.cancel(*(row.number for row in rows))
        wait_for_end(self.slurm, {row.number: str(row.work) for row in rows}, self.report)


class Adopting(Following):
    def __post_init__(self) -> None:
        self.submissions = Submissions()
        self.fingerprints: dict[str, str] = {}  # of jobs that are being submitted, by comment
        super().__post_init__()
        self.left_over = LeftOver(self.slurm, self.submissions, self.logger.info)

    def run_job(self, job: "Job") -> None:
        """Go on with a job that an earlier workflow has submitted, or take its results, or submit it."""
        if not (left := self.left_over.take(job)):
            self.fingerprints[comment(job)] = fingerprint(job, self.workflow.executor_settings)
            super().run_job(job)
            return
        earlier, work = left.submission, Work.of(comment(job))
        aux = {"slurm_logfile": Path(earlier.log), "outputs_before": earlier.outputs, "is_adopted": True}
        job_info = SubmittedJobInfo(job, earlier.number, aux)
        if left.is_done:
            self.logger.info(f"{work} was completed by SLURM job {earlier.number} while no workflow ran (log: {earlier.log}).")
            self.following[earlier.number] = job_info
            self.report_job_success(job_info)
        else:
            self.logger.info(f"{work} continues as SLURM job {earlier.number} (log: {earlier.log}).")
            self.report_job_submission(job_info)

    def to_cancel(self) -> dict[str, str]:
        """With the jobs that are in the queue, but whose turn has not come, since `--jobs` others run."""
        return super().to_cancel() | self.left_over.running()

    def report_job_submission(self, job_info: SubmittedJobInfo, *args: object, **kwargs: object) -> None:
        super().report_job_submission(job_info, *args, **kwargs)
        number, name, aux = job_info.external_jobid, comment(job_info.job), job_info.aux
        with self.warning_of_full_disk():
            if aux.get("is_adopted"):
                self.submissions.adopted(number)
            else:
                known = self.fingerprints.pop(name, "")
                self.submissions.submitted(Submission(number, name, known, str(aux["slurm_logfile"]), aux["outputs_before"]))

    def report_job_success(self, job_info: SubmittedJobInfo) -> None:
        self.record_end(job_info, "COMPLETED")
        super().report_job_success(job_info)

    def report_job_error(self, job_info: SubmittedJobInfo, msg: str | None = None, **kwargs: object) -> None:
        self.record_end(job_info, (job_info.aux or {}).get("state") or "FAILED")
        super().report_job_error(job_info, msg, **kwargs)

    def record_end(self, job_info: SubmittedJobInfo, state: str) -> None:
        if job_info.external_jobid in self.following:
            with self.warning_of_full_disk():
                self.submissions.ended(job_info.external_jobid, state)

    @contextlib.contextmanager
    def warning_of_full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.logger.warning(f"{error}. Should snakemake be killed, the next start may end jobs that it could adopt.")
