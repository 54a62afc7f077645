"""What the parts of the executor share: SLURM, and the jobs that are followed, to their end or to Ctrl-C."""

import threading

from snakemake_executor_plugin_slurm import Executor
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snaketrain.orchestration.submissions import stamps
from snaketrain.slurm.client import Slurm, SlurmError, wait_for_end
from snaketrain.slurm.jobs import job_name


class Following(Executor):  # type: ignore[misc]  # the plug-in has no types
    def __post_init__(self) -> None:
        """Called by the plug-in; each part sets what it needs before it calls the next one's."""
        self.slurm = Slurm()
        self.following: dict[str, SubmittedJobInfo] = {}  # by number: submitted or adopted, and not known to have ended
        self.cancelling = threading.Event()
        super().__post_init__()

    def report_job_submission(self, job_info: SubmittedJobInfo, *args: object, **kwargs: object) -> None:
        job_info.aux.setdefault("outputs_before", stamps(job_info.job.output))
        self.following[job_info.external_jobid] = job_info
        super().report_job_submission(job_info, *args, **kwargs)
        if self.cancelling.is_set():  # Ctrl-C came while sbatch was at work
            self.scancel([job_info.external_jobid])

    def report_job_success(self, job_info: SubmittedJobInfo) -> None:
        self.following.pop(job_info.external_jobid, None)
        super().report_job_success(job_info)

    def report_job_error(self, job_info: SubmittedJobInfo, msg: str | None = None, **kwargs: object) -> None:
        """`job_info.aux["state"]`: in which SLURM has ended the job, if that is known."""
        self.following.pop(job_info.external_jobid, None)
        super().report_job_error(job_info, msg, **kwargs)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel the jobs and wait until they have saved; a second Ctrl-C stops waiting. `active_jobs` is empty during a look at the jobs."""
        self.cancelling.set()  # waiting submissions give up
        with self.lock:
            self.wait = False  # no more looks: the end of each job would be reported as its failure
        if (wanted := self.to_cancel()) and self.scancel(list(wanted)):
            wait_for_end(self.slurm, wanted, self.logger.info)

    def to_cancel(self) -> dict[str, str]:
        """Numbers and names."""
        return {number: job_name(info.job) for number, info in self.following.copy().items()}

    def scancel(self, numbers: list[str]) -> bool:
        """Whether SLURM has taken the order: the plug-in would only warn if it did not answer, and takes jobs that ended long ago for an error."""
        try:
            self.slurm.cancel(*numbers)
        except SlurmError as error:
            self.logger.error(
                f"{error}\nThe jobs keep running, and the next start of snakemake adopts them. To end them: scancel {' '.join(numbers)}"
            )
            return False
        return True
