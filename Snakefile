# The table of contents: read the settings, include a rule file for each stage, say what `all` is.
import os
import sys
from pathlib import Path

sys.path.insert(0, f"{workflow.basedir}/workflow/scripts")

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snaketrain.config.files import read_configuration
from snaketrain.runtime.credentials import Concealing
from snaketrain.orchestration import launching
from snaketrain.config.errors import ConfigurationError
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.preflight import examine
from snaketrain.orchestration.rule_values import untracked, varying
from snaketrain.orchestration.stage_commands import stage_command

SCRIPTS = f"{workflow.basedir}/workflow/scripts"
logger.addFilter(Concealing())

# `--configfile` replaces the default. Snakemake has read it too, but does not mind equal keys, and takes all in `--config` for texts
CONFIGURATION = workflow.overwrite_configfiles or ["config/config.yaml"]

try:
    launching.check_folder(os.getcwd())
    config = read_configuration(CONFIGURATION, workflow.config_settings.config_args)
    runs = examine(config) if workflow.is_main_process else None
    in_slurm_job = workflow.remote_exec and "SLURM_JOB_ID" in os.environ
    pipeline = Pipeline(config, in_slurm_job=in_slurm_job, reads_files=workflow.is_main_process, runs=runs)
except ConfigurationError as error:
    raise WorkflowError(str(error)) from None

if not workflow.overwrite_configfiles:
    workflow.configfiles += CONFIGURATION  # which `configfile:` would read once more, for Snakemake's report


wildcard_constraints:
    run="[^/]+",
    dataset="[^/]+",
    model="[^/]+",


report: "workflow/report/workflow.rst"


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
