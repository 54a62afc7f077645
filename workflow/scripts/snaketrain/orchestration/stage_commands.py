"""Builds the shell command of each job, in which every path and every text is one quoted word.

Rules insert nothing, so the contents of paths and settings never reach a shell as code. Only `compute.launch_command` and
`compute.setup` are shell text of the user's own.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from snaketrain.orchestration import launching
from snaketrain.orchestration.code_digest import SCRIPTS
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.rule_values import job_name
from snaketrain.orchestration.script_options import Option
from snaketrain.orchestration.snakemake_objects import Inputs, Wildcards
from snaketrain.runtime.manifests import write_text
from snaketrain.runtime.private_files import PRIVATE_FILE

LONGEST = 120_000  # bytes: Linux passes a program, such as the shell, no longer word than 128 KiB


def stage_command(
    pipeline: Pipeline, stage: str, executes: Callable[[], bool], wildcards: Wildcards, input: Inputs, output: Sequence[str], threads: int
) -> str:
    """The `command` param of a rule. A process that `executes` jobs also writes the job's settings file; a dry run writes nothing.

    Every process that executes a job parses the Snakefile, also on a compute node, so the file has the settings that it compares.
    """
    job = job_name(wildcards)
    command = shell_command(pipeline, stage, job, output[0], dict(input.items()), threads)
    if executes():
        pipeline.stages[stage].store_settings(job)
        command = fitting(command, pipeline.stages[stage].job_settings(job).path(job))
    return logged(command, show=pipeline.in_job)


def shell_command(pipeline: Pipeline, stage: str, job: str, output: str, given: Mapping[str, Option], threads: int = 1) -> str:
    """The launcher, the script and its options; `given`: the named inputs of the rule."""
    called = pipeline.stages[stage]
    script = str(SCRIPTS / f"{called.script}.py")
    return f"{called.launcher(job)} {shlex.join([script, *called.words(job, output, given, threads)])}"


def fitting(command: str, settings: Path) -> str:
    """The command, or where it is too long one that reads it from a file beside the job's settings: thousands of shards or runs have long lists of names."""
    if len(command.encode()) <= LONGEST:
        return command
    file = settings.with_suffix(".sh")
    write_text(file, f"{command}\n", PRIVATE_FILE)
    return f". {shlex.quote(str(file))}"


def logged(command: str, show: bool) -> str:
    """Writes all output to a log, with passwords concealed; the caller appends the log's path. `set -x` prints the command, ready to be repeated.

    `show`: also to the log of the job that a cluster runs. On a failure the trap adds the exit code, since a killed process writes nothing itself.
    """
    keep = launching.keep_log(show)
    on_exit = shlex.quote(f'code=$?; ((code == 0)) || {keep} --ended $code "${{log[@]}}"')
    # without bash's own message about a killed process, which repeats the command
    piped = f'{{ (PS4=; set -x; {command}) 2>&1 3>&- | {keep} "$@" 2>&3 3>&-; }} 3>&2 2> /dev/null'
    return f'logged() {{ log=("$@"); trap {on_exit} EXIT; {piped}; }}; logged'


def comparison_without(pipeline: Pipeline, unfinished: Mapping[str, str]) -> str:
    """Compares the runs that have results, and says why the others have none."""
    evaluated = [run for run in pipeline.searches.finishing() if Path(pipeline.manifest("evaluate_model", run)).is_file()]
    runs = [run for run in evaluated if run not in unfinished]
    sets = [name for name in pipeline.evaluations_of(runs) if name not in unfinished]
    given: dict[str, Option] = {"runs": runs, "sets": sets, "unfinished": [f"{name}: {why}" for name, why in unfinished.items()]}
    made = [path for decision in pipeline.searches.decisions if Path(path := pipeline.manifest("decide_rung", decision)).is_file()]
    given["decisions"] = made
    command = shell_command(pipeline, "compare_runs", "", pipeline.manifest("compare_runs"), given)
    pipeline.stages["compare_runs"].store_settings("")
    command = fitting(command, pipeline.stages["compare_runs"].job_settings("").path(""))
    return f"set -o pipefail; mkdir -p logs; {logged(command, show=False)} logs/compare_runs.log"
