# Read the configuration, include a rule file for each stage, define `all`.
import os
import sys
from pathlib import Path

sys.path.insert(0, f"{workflow.current_basedir}/workflow/scripts")

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snaketrain.config.files import read_configuration
from snaketrain.runtime.credentials import Concealing
from snaketrain.orchestration import launching
from snaketrain.orchestration.console.handler import install
from snaketrain.config.errors import ConfigurationError
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.preflight import examine
from snaketrain.orchestration.rule_values import untracked, varying
from snaketrain.orchestration.stage_commands import stage_command

SCRIPTS = f"{workflow.current_basedir}/workflow/scripts"
logger.addFilter(Concealing())

# whether this process runs jobs: not in a dry run, and not for a report
executes = lambda: workflow.executor_plugin is not None and not workflow.dryrun
console = install(logger, executes) if workflow.is_main_process else None

# `--configfile` replaces the default. Snakemake reads it too, but accepts duplicate keys and takes all values in `--config` for strings
CONFIGURATION = workflow.overwrite_configfiles or ["config/config.yaml"]

try:
    launching.check_folder(os.getcwd())
    config = read_configuration(CONFIGURATION, workflow.config_settings.config_args)
    runs = examine(config) if workflow.is_main_process else None
    in_job = workflow.remote_exec
    in_slurm_job = in_job and "SLURM_JOB_ID" in os.environ
    pipeline = Pipeline(config, in_slurm_job=in_slurm_job, reads_files=workflow.is_main_process, runs=runs, in_job=in_job)
except ConfigurationError as error:
    raise WorkflowError(str(error)) from None

if not workflow.overwrite_configfiles:
    workflow.configfiles += CONFIGURATION  # for Snakemake's report; `configfile:` would read it once more


wildcard_constraints:
    run="[^/]+",
    dataset="[^/]+",
    shard="[^/]+",
    model="[^/]+",
    input_name="[^/]+",
    prepared_set="[^/]+",
    evaluation_set="[^/]+",
    search="[^/]+",
    rung="[1-9][0-9]*",


report: "workflow/report/workflow.rst"


include: "workflow/rules/check_results.smk"
include: "workflow/rules/fetch_model.smk"
include: "workflow/rules/fetch_data.smk"
include: "workflow/rules/prepare_shards.smk"
include: "workflow/rules/prepare_data.smk"
include: "workflow/rules/fetch_input.smk"
include: "workflow/rules/prepare_set.smk"
include: "workflow/rules/decisions.smk"
include: "workflow/rules/search.smk"
include: "workflow/rules/train_trunk.smk"
include: "workflow/rules/train_model.smk"
include: "workflow/rules/select_checkpoint.smk"
include: "workflow/rules/evaluate_model.smk"
include: "workflow/rules/evaluate_set.smk"
include: "workflow/rules/predict_inputs.smk"
include: "workflow/rules/compare_runs.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/on_cluster.smk"
include: "workflow/rules/follow_runs.smk"


localrules:
    all,
    fetch_model,
    fetch_data,
    fetch_input,
    decide_classes,
    compare_runs,
    decide_rung,
    plan,


if pipeline.selection_is_light:

    localrules:
        select_checkpoint,


rule all:
    default_target: True
    input:
        pipeline.manifest("compare_runs"),
        # Snakemake only notices missing files that something depends on
        [pipeline.results(run) for run in pipeline.searches.unsearched],
        *of_finalists(pipeline.results),
