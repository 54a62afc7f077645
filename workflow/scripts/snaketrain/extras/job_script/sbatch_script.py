"""The text of the script: SLURM's options as the workflow gives them, and one srun of torchrun with the command of the rule."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.config.schema import Compute
from snaketrain.launch.workers import PROCESSES, torchrun
from snaketrain.orchestration import launching
from snaketrain.orchestration.rule_values import job_name
from snaketrain.orchestration.stages import TrainModel
from snaketrain.orchestration.submissions import sbatch_command
from snaketrain.slurm import jobs

if TYPE_CHECKING:
    from snakemake.jobs import Job
    from snakemake_executor_plugin_slurm import ExecutorSettings

    from snaketrain.orchestration.pipeline import Pipeline

LONG = {
    "-A": "--account", "-C": "--constraint", "-N": "--nodes", "-c": "--cpus-per-task", "-n": "--ntasks", "-p": "--partition", "-q": "--qos",
    "-t": "--time", "-w": "--nodelist", "-x": "--exclude",
}  # fmt: skip
OF_THE_COMMAND_LINE = ("--parsable", "--export")  # the first is for programs, the second says what SLURM does anyway
ABOUT = """
# The training of run {run}, as the workflow submits it. Without the workflow:
#
#     cd {folder} && mkdir -p {logs} && sbatch THIS_FILE
#
# A training that has been stopped, by its time limit for example, resumes from its last checkpoint: submit it again. Once it has
# finished, snakemake takes its result as its own. What the workflow does besides: it starts lost processes again within the job,
# leaves out nodes that are unfit, requeues a job whose time runs out, and selects, evaluates and compares what was trained.
"""
MEETING = """set -eu
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)  # the node where all processes meet
port=$((20000 + SLURM_JOB_ID % 20000))
export TORCH_CPP_LOG_LEVEL="${TORCH_CPP_LOG_LEVEL:-ERROR}"  # torch warns at each start and end of its connections
"""
NOT_FINISHED = '|| { code=$?; echo "The training has not finished: srun ended with exit code $code. Submit this script again to resume." >&2; exit $code; }'
SRUN = (
    'srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task={threads} '
    # on whole nodes a step gets only the GPUs that it asks for
    "${{SLURM_GPUS_ON_NODE:+--gpus-per-node=$SLURM_GPUS_ON_NODE}} --kill-on-bad-exit=1 --unbuffered"
)
RENDEZVOUS = (
    '--nnodes="$SLURM_JOB_NUM_NODES"',
    "--rdzv-backend=c10d",
    '--rdzv-endpoint="$first:$port"',
    '--rdzv-id="$SLURM_JOB_ID"',
)


def script_of(job: "Job", settings: "ExecutorSettings", pipeline: "Pipeline", before: Iterable[str] = ()) -> str:
    """`before`: results that must be made first. A ValueError says what SLURM cannot read in a script."""
    run, stage = job_name(job.wildcards), pipeline.stages[TrainModel.name]
    compute = pipeline.computes[run]
    logs = Path(settings.logdir or ".snakemake/slurm_logs") / f"rule_{job.name}" / run
    options = options_of(sbatch_command(job, settings, jobs.job_name(job), str(logs / "%j.log"), jobs.comment(job)))
    if compute.counts.spares:  # which only the workflow uses
        options["--nodes"] = str(compute.counts.most)
    about = ABOUT.format(run=run, folder=shlex.quote(os.getcwd()), logs=shlex.quote(str(logs)))
    if awaited := list(before):
        about += "#\n# These must be there before:\n" + "".join(f"#     {path}\n" for path in awaited)
    words = shlex.split(job.shellcmd)
    script = words[words.index(str(stage.script)) :]  # with its arguments; before it, what starts it
    lines = [*directives({"--chdir": os.getcwd(), **options}), about, *body(compute, script)]
    return "\n".join(["#!/bin/bash", *lines]) + "\n"


def options_of(command: str) -> dict[str, str | None]:
    """Of sbatch, by their long names; of an option that is given several times the last, which is the one that counts."""
    words, found = shlex.split(command)[1:], dict[str, str | None]()
    while words:
        word = words.pop(0)
        name, given, value = word.partition("=") if word.startswith("--") else (LONG.get(word[:2], word[:2]), word[2:], word[2:])
        if not given and words and not words[0].startswith("-"):
            given = value = words.pop(0)
        found[name] = value if given else None
    return {name: value for name, value in found.items() if name not in OF_THE_COMMAND_LINE}


def directives(options: dict[str, str | None]) -> Iterator[str]:
    for name, value in options.items():
        if value is not None and "\n" in value:
            raise ValueError(f"{name}: a line break cannot be written in a script for sbatch: {value!r}")
        between = "=" if name.startswith("--") else " "
        yield f"#SBATCH {name}" + ("" if value is None else between + quoted(value))
    if missing := [name for name in ("--account", "--partition") if name not in options]:
        yield f"# {' and '.join(missing)}: not in the profile, so that SLURM takes your default"


def quoted(value: str) -> str:
    """As sbatch reads it, which takes backslashes for escapes in any quotes."""
    return value if re.fullmatch(r"[\w@%+=:,./\[\]-]+", value) else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def body(compute: Compute, script: Sequence[str]) -> Iterator[str]:
    arguments = grouped(script)
    if compute.launcher == "env":
        yield continued([launching.launch(compute, True), *arguments])
        return
    yield MEETING
    if compute.interface:
        yield f"export NCCL_SOCKET_IFNAME={shlex.quote(f'={compute.interface}')} GLOO_SOCKET_IFNAME={shlex.quote(compute.interface)}"
    srun = [SRUN.format(threads=compute.threads), *map(shlex.quote, launching.srun_options(compute))]
    python = shlex.join(launching.python_words(compute))
    if compute.setup:
        yield f"# runs compute.setup and then the command after it, or ends the job if that fails\nrun_setup={shlex.quote(launching.RUN_SETUP)}"
        python = python.replace(shlex.quote(launching.RUN_SETUP), '"$run_setup"')
    bind = [f"--numa-binding={compute.bind}"] if compute.bind != "none" else []
    program, *handling = torchrun([f"{PROCESSES}{compute.processes}", *bind])
    yield "# one torchrun on each node, with all cores that the job has there"
    yield continued(
        [
            " ".join(srun), python, " ".join([shlex.quote(program), *RENDEZVOUS]), shlex.join(handling),
            *arguments, NOT_FINISHED,
        ]
    )  # fmt: skip


def grouped(words: Sequence[str]) -> Iterator[str]:
    """Each option with its values."""
    group: list[str] = []
    for word in words:
        if word.startswith("--") and group:
            yield shlex.join(group)
            group = []
        group.append(word)
    yield shlex.join(group)


def continued(parts: Sequence[str]) -> str:
    return " \\\n    ".join(parts)
