# The table of contents: read the settings, include a rule file for each stage, say what `all` is.
import os
import sys
from pathlib import Path

# `--configfile` replaces the default; Snakemake by itself would merge the two, data and runs included
if not workflow.overwrite_configfiles:

    configfile: "config/config.yaml"


sys.path.insert(0, f"{workflow.basedir}/workflow/scripts")

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snaketrain.credentials import Concealing
from snaketrain.workflow import launching
from snaketrain.mistakes import BadConfiguration
from snaketrain.workflow.pipeline import Pipeline
from snaketrain.workflow.preflight import examine
from snaketrain.workflow.rule_values import untracked, varying
from snaketrain.workflow.stage_commands import stage_command

SCRIPTS = f"{workflow.basedir}/workflow/scripts"
KEEP_LOG = launching.keep_log()  # what jobs say, without passwords; and so what Snakemake says of them
logger.addFilter(Concealing())

try:
    launching.check_folder(os.getcwd())
    pipeline = Pipeline(config, in_slurm_job=workflow.remote_exec and "SLURM_JOB_ID" in os.environ, reads_files=workflow.is_main_process)
    if workflow.is_main_process:
        examine(pipeline)
except BadConfiguration as error:
    raise WorkflowError(str(error)) from None


wildcard_constraints:
    run="[^/]+",
    dataset="[^/]+",
    model="[^/]+",


report: "workflow/report/workflow.rst"


# `PS4=; set -x` in the rules: the log of a job begins with its command, quoted so that a shell takes it again
include: "workflow/rules/look_at_results.smk"
include: "workflow/rules/fetch_model.smk"
include: "workflow/rules/fetch_data.smk"
include: "workflow/rules/prepare_data.smk"
include: "workflow/rules/train_model.smk"
include: "workflow/rules/select_checkpoint.smk"
include: "workflow/rules/evaluate_model.smk"
include: "workflow/rules/compare_runs.smk"
include: "workflow/rules/on_cluster.smk"
include: "workflow/rules/follow_runs.smk"


localrules:
    all,
    fetch_model,
    fetch_data,
    compare_runs,


rule all:
    default_target: True
    input:
        pipeline.manifest("compare_runs"),
        # Snakemake looks for what is missing only where something depends on it
        [pipeline.results(run) for run in pipeline.runs],
