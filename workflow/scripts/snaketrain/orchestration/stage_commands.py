"""Builds the shell command of each stage's job, in which every path and every text is one quoted word.

Rules insert nothing, so the contents of paths and settings never reach a shell as code. Only `compute.launch_command` and
`compute.setup` are shell text of the user's own.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from snaketrain.config.schema import Compute
from snaketrain.orchestration import launching
from snaketrain.orchestration.code_digest import SCRIPTS
from snaketrain.orchestration.evaluation_sets import run_of
from snaketrain.orchestration.pipeline import RESULTS, TRAIN, Pipeline
from snaketrain.orchestration.rule_values import job_name
from snaketrain.orchestration.shards import shard_of
from snaketrain.orchestration.snakemake_objects import Inputs, Wildcards
from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.job_settings import JobSettings

RUNS_A_MODEL = (*TRAIN, "evaluate_model", "evaluate_set", "predict_inputs")
Option = str | int | float | bool | list[str] | None


def stage_command(
    pipeline: Pipeline, stage: str, executes: Callable[[], bool], wildcards: Wildcards, input: Inputs, output: Sequence[str], threads: int
) -> str:
    """The `command` param of a rule. A process that `executes` jobs also writes the job's settings file; a dry run writes nothing.

    Every process that executes a job parses the Snakefile, also on a compute node, so the file has the settings that it compares.
    """
    name = job_name(wildcards)
    if executes():
        job_settings(pipeline, stage, name).store(name)
        if stage == "train_rung":
            job_settings(pipeline, "train_model", run_of(name)).store(run_of(name))
    return logged(shell_command(pipeline, stage, name, output[0], dict(input.items()), threads), show=pipeline.in_job)


def logged(command: str, show: bool) -> str:
    """Writes all output to a log, with passwords concealed; the caller appends the log's path. `set -x` prints the command, ready to be repeated.

    `show`: also to the log of the job that a cluster runs.
    """
    return f"(PS4=; set -x; {command}) 2>&1 | {launching.keep_log(show)}"


def comparison_without(pipeline: Pipeline, unfinished: Mapping[str, str]) -> str:
    """Compares the runs that have results, and says why the others have none."""
    output = f"{RESULTS}/comparison/manifest.json"
    evaluated = [run for run in pipeline.searches.finishing() if Path(pipeline.manifest("evaluate_model", run)).is_file()]
    runs = [run for run in evaluated if run not in unfinished]
    sets = [name for name in pipeline.evaluations_of(runs) if name not in unfinished]
    given: dict[str, Option] = {"runs": runs, "sets": sets, "unfinished": [f"{name}: {why}" for name, why in unfinished.items()]}
    made = [path for decision in pipeline.searches.decisions if Path(path := pipeline.manifest("decide_rung", decision)).is_file()]
    given["decisions"] = made
    command = shell_command(pipeline, "compare_runs", "", output, given)
    job_settings(pipeline, "compare_runs", "").store()
    return f"set -o pipefail; mkdir -p logs; {logged(command, show=False)} logs/compare_runs.log"


def shell_command(pipeline: Pipeline, stage: str, name: str, output: str, given: Mapping[str, Option], threads: int = 1) -> str:
    """The launcher, the script of a stage and its options; `name` is that of the run, the data set or the model, if there are several."""
    if stage in RUNS_A_MODEL:
        start = launching.launch(pipeline.compute(stage, name), pipeline.in_slurm_job)
    else:
        start = launching.python_with_network() if stage.startswith("fetch") else launching.python()
    script = SCRIPTS / f"{'train_model' if stage == 'train_trunk' else stage}.py"
    return f"{start} {shlex.join([str(script), *script_words(pipeline, stage, name, output, given, threads)])}"


def script_words(pipeline: Pipeline, stage: str, name: str, output: str, given: Mapping[str, Option], threads: int = 1) -> list[str]:
    """The command line of a stage's script: the rule's named inputs as options of the same names, and options from the settings."""
    settings = str(job_settings(pipeline, stage, name).path(name))
    if stage == "train_rung":  # which continues the training of the run
        rung: dict[str, Option] = {
            "rung-output": [output],
            "rung-settings": settings,
            "share": pipeline.searches.share(name),
            "rung-name": name,
        }
        training = pipeline.manifest("train_model", run_of(name))
        return [*script_words(pipeline, "train_model", run_of(name), training, given, threads), *option_words(rung)]
    return option_words({"output": [output], "settings": [settings], **options(pipeline, stage, name, threads), **given})


def job_settings(pipeline: Pipeline, stage: str, name: str) -> JobSettings:
    if stage == "train_trunk":  # with the settings of a run, whose script it is
        return JobSettings.of("train_model", pipeline.strings("train_model", pipeline.run_behind(stage, name)))
    return JobSettings.of(stage, pipeline.strings(stage, name))


def option_words(options: Mapping[str, Option]) -> list[str]:
    """`--name=value` as one word, since a value may begin with a dash; `--name one two` for a list; `--name` for a switch that is on."""
    words = []
    for name, value in options.items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            words.append(f"--{name}={value}")
        elif value is True:
            words.append(f"--{name}")
        elif value:  # otherwise it is off, empty or not given
            words += [f"--{name}", *value]
    return words


def options(pipeline: Pipeline, stage: str, name: str, threads: int) -> dict[str, Option]:
    """The options of a stage besides its inputs and settings."""
    if stage == "prepare_data":
        return {"threads": threads}
    if stage == "survey_shard":
        return {"shard": shard_of(name)}
    if stage == "prepare_shard":
        return {"shard": shard_of(name), "threads": threads}
    if stage == "prepare_set":
        return {"set-name": pipeline.sets.prepared[name].name, "threads": threads}
    if stage == "train_model":
        return {"run-name": name, "experiment": hidden(pipeline.runs[name].tracking.experiment)} | training_options(pipeline, name)
    if stage == "train_trunk":
        return trunk_options(pipeline, name) | training_options(pipeline, pipeline.run_behind(stage, name))
    if stage in ("evaluate_model", "evaluate_set"):
        (run, *names), compute = name.split("/"), pipeline.compute(stage, name)
        found: dict[str, Option] = {"run-name": run, "device": compute.required_device, "stall-seconds": compute.stall_seconds}
        return found | {"loader-workers": loader_workers(compute)} | ({"set-name": names[0]} if names else {})
    if stage == "predict_inputs":
        compute, size = pipeline.compute(stage, name), pipeline.runs[name].evaluate.batch_size
        return {"batch-size": size, "threads": threads, "device": compute.required_device, "stall-seconds": compute.stall_seconds}
    if stage == "compare_runs":
        runs = pipeline.searches.finishing()
        return {"runs-root": f"{RESULTS}/runs", "runs": runs, "sets": pipeline.evaluations_of(runs)}
    if stage == "decide_rung":
        return {"decision": name}
    return {}


def training_options(pipeline: Pipeline, run: str) -> dict[str, Option]:
    """Options that do not affect the result of a training."""
    settings = pipeline.runs[run]
    profile = settings.compute.profile
    return {
        "device": settings.compute.required_device,
        "keep-best-by": settings.select.metric,
        "keep-best-mode": settings.select.mode,
        "keep": settings.compute.keep_checkpoints,
        "checkpoint-format": settings.compute.checkpoint_format,
        "log-every": settings.tracking.log_every_steps,
        "stall-seconds": settings.compute.stall_seconds,
        "rank-files": settings.compute.rank_files,
        "profile": f"{profile.first_step}:{profile.steps}" if profile else None,
        "reduce-batch-on-oom": settings.compute.reduce_batch_on_oom,
        "loader-workers": loader_workers(settings.compute),
        "notes": hidden(settings.tracking.notes),
    }


def trunk_options(pipeline: Pipeline, name: str) -> dict[str, Option]:
    """A trunk is no run, so MLflow has it in an experiment of its own."""
    trunk = pipeline.trunks.known[name]
    experiment = f"{pipeline.runs[trunk.run].tracking.experiment}-trunks"
    return {"run-name": name, "experiment": hidden(experiment), "branch-steps": list(map(str, trunk.branch_steps))}


def loader_workers(compute: Compute) -> str | None:
    """A number; with `auto` the largest."""
    if compute.loader_workers == "auto":
        return f"auto:{max(1, compute.threads // compute.processes)}"
    return str(compute.loader_workers) if compute.loader_workers else None
