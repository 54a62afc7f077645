"""The executor of Snakemake's SLURM plug-in, made to outlast outages of slurmctld, limits on submission, and the end of snakemake itself.

Each part is a class derived from the plug-in's, in a file of its own: docs/executor.md. This file puts them together.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snakemake_executor_plugin_slurm_steady.checks import (
    is_done,
    misquoted,
    not_followed,
    passed_to_jobs,
    reads_what_is_there,
    refusals,
    to_submit,
)
from snakemake_executor_plugin_slurm_steady.ends import Explained
from snakemake_executor_plugin_slurm_steady.left_over import Adopting
from snakemake_executor_plugin_slurm_steady.looks import Looking
from snakemake_executor_plugin_slurm_steady.monitor import JobMonitor
from snakemake_executor_plugin_slurm_steady.names import Named
from snakemake_executor_plugin_slurm_steady.submitting import Patient
from snaketrain.config.schema.of_extras import hooks
from snaketrain.orchestration import executor_hooks
from snaketrain.runtime.manifests import make_private_folder
from snaketrain.slurm.client import SlurmError

if TYPE_CHECKING:
    import logging

    from snakemake.jobs import Job
    from snakemake.workflow import Workflow


class SteadyExecutor(Adopting, Patient, Named, Looking, Explained):
    """A job is adopted, or submitted until SLURM takes it, under its own name; in this order."""

    def __init__(self, workflow: "Workflow", logger: "logging.Logger") -> None:
        try:
            self.hooks = executor_hooks.registered()
        except LookupError as error:
            raise WorkflowError(str(error)) from None
        super().__init__(workflow, logger)
        if any(True for _ in workflow.dag.needrun_jobs()):
            self.begin(workflow)

    def begin(self, workflow: "Workflow") -> None:
        """Before the first job: refuse what cannot run, adopt or end what a killed workflow has left, and watch the jobs from now on."""
        dag, settings = workflow.dag, workflow.executor_settings
        submitted, logs = to_submit(dag), Path(settings.logdir or ".snakemake/slurm_logs")
        try:
            refused = misquoted(passed_to_jobs(workflow), not settings.pass_command_as_script) + not_followed(submitted, settings)
            self.hooks.check(refused or refusals(self.slurm, submitted, settings, self.logger.info))
            self.left_over.settle(submitted, settings, partial(reads_what_is_there, dag), partial(is_done, dag, self.hooks.is_done))
        except SlurmError as error:
            raise WorkflowError(str(error)) from None
        for folder in (logs.parent, logs):
            make_private_folder(folder)
        self.monitor = JobMonitor(self.slurm, logs, self.logger.info, *self.hooks.watched(), self.cancelling.is_set)

    def run_job(self, job: "Job") -> None:
        try:
            for before_submission in hooks("submitting", "before_submission"):
                before_submission(job, self.workflow.executor_settings)
            super().run_job(job)
        except Exception as error:  # nobody looks at the thread that this runs in
            self._report_job_error_threadsafe(SubmittedJobInfo(job), f"The job was not submitted: {type(error).__name__}: {error} ")
