"""Beside the settings of a training that is submitted, the script that does the same without the workflow."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.rule_values import job_name
from snaketrain.orchestration.stages import TrainModel
from snaketrain.runtime.manifests import PRIVATE_FILE, write_text

if TYPE_CHECKING:
    from snakemake.jobs import Job
    from snakemake.workflow import Workflow
    from snakemake_executor_plugin_slurm import ExecutorSettings


known: list[tuple["Workflow", Pipeline]] = []  # what the Snakefile makes, and Snakemake keeps for itself


def register(workflow: "Workflow", pipeline: Pipeline) -> None:
    known[:] = [(workflow, pipeline)]


def before_submission(submission: "Job", settings: "ExecutorSettings") -> None:
    """The training itself takes the script into its folder, which it may set aside before."""
    from snaketrain.extras.job_script.sbatch_script import script_of  # not for each job that reads the Snakefile

    trainings = [job for job in getattr(submission, "jobs", [submission]) if job.rule.name == TrainModel.name]  # of a group
    for _, pipeline in known:
        for job in trainings:
            try:
                path = Path(pipeline.stages[TrainModel.name].settings_file(job_name(job.wildcards)))
                write_text(path.with_suffix(".sh"), script_of(job, settings, pipeline), PRIVATE_FILE)
            except (OSError, ValueError) as error:
                print(f"warning: no job.sh for {job_name(job.wildcards)}: {error}", file=sys.stderr, flush=True)
