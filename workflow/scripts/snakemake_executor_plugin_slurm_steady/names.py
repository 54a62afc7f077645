"""The name of a job in squeue tells what it is: the plug-in calls all jobs of a workflow by one UUID."""

import threading
from typing import TYPE_CHECKING

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snakemake_executor_plugin_slurm_steady.following import Following
from snaketrain.slurm.jobs import job_name

if TYPE_CHECKING:
    from snakemake.jobs import Job


class Named(Following):
    def __post_init__(self) -> None:
        self.submission = threading.local()  # this thread's: the name of its job
        self.names: set[str] = set()  # of all jobs that were followed
        super().__post_init__()

    @property
    def run_uuid(self) -> str:
        """What the plug-in calls the job that it submits; and the jobs of its efficiency report, at the end."""
        submitting: str | None = getattr(self.submission, "name", None)
        return submitting or ",".join(sorted(self.names)) or "none"

    @run_uuid.setter
    def run_uuid(self, uuid: str) -> None:
        """Set by the plug-in, and not used."""

    def name_of(self, job: "Job") -> str:
        prefix = self.workflow.executor_settings.jobname_prefix
        return f"{prefix}_{job_name(job)}" if prefix else job_name(job)

    def run_job(self, job: "Job") -> None:
        self.submission.name = self.name_of(job)
        try:
            super().run_job(job)
        finally:
            self.submission.name = None

    def report_job_submission(self, job_info: SubmittedJobInfo, *args: object, **kwargs: object) -> None:
        self.names.add(self.name_of(job_info.job))
        super().report_job_submission(job_info, *args, **kwargs)
