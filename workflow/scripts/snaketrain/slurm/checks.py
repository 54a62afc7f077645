"""What SLURM knows of this workflow's jobs: what it would refuse, and what a killed workflow left behind."""

import os
import shlex
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from snaketrain.slurm.client import QueuedJob, Slurm, SlurmError

if TYPE_CHECKING:
    from snakemake.jobs import Job
    from snakemake_executor_plugin_slurm import ExecutorSettings

ENDING_SECONDS = 300  # a training may take so long to save

REFUSED = {
    "account": "set slurm_account in the profile; `sacctmgr show associations user=$USER` lists the accounts",
    "partition": "set compute.partition, or slurm_partition in the profile; `sinfo --summarize` lists the partitions",
    "node configuration": "no node there has so much: lower compute.memory_mb, compute.threads or compute.gpus (each is for one node), or "
    "compute.nodes; `sinfo --Node --long` shows what there is",
    "Memory": "lower compute.memory_mb, which is for one node, or mem_mb in the profile",
    "gres": "lower compute.gpus, which is for one node; `sinfo --format '%P %G'` shows where there are any",
    "feature": "correct compute.sbatch; `sinfo --format '%P %f'` lists the features",
    "qos": "correct compute.sbatch, or slurm-qos in the profile",
    "time limit": "lower compute.minutes, or runtime in the profile: a longer training saves, is queued again and goes on",
}
FOR_NOW = ("busy", "not available (down", "Unable to contact", "Socket timed out", "temporarily")
OVER = ("COMPLETED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "CANCELLED", "FAILED", "BOOT_FAIL", "DEADLINE")
# of a job that ended so: what became of it, and what to do
NOT_RETRIED = {
    "CANCELLED": "was cancelled, and stays so: start snakemake again to go on with it",
    "OUT_OF_MEMORY": "would need as much memory again, so it is not retried: raise compute.memory_mb, or mem_mb in the profile for the small stages",
}


def jobs_here(slurm: Slurm) -> list[QueuedJob]:
    """The jobs that a workflow in this folder has submitted."""
    here = os.path.realpath(".")
    return [job for job in slurm.user_jobs() if job.comment.startswith("rule_") and os.path.realpath(job.folder) == here]


# --- before anything is submitted


def outlast_outages() -> None:
    """Let Snakemake make our executor where it would make the plugin's; to be called before it makes any."""
    from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

    registry = ExecutorPluginRegistry()
    if registry.is_installed("slurm"):
        from snaketrain.slurm.steady_executor import SteadyExecutor  # the plugin takes a while to load

        registry.get_plugin("slurm").executor = SteadyExecutor


def refusals(slurm: Slurm, jobs: Iterable["Job"], settings: "ExecutorSettings") -> list[str]:
    """What SLURM would not take, whoever waits; jobs that ask for the same are looked at once."""
    asked: dict[str, str] = {}
    for job in jobs:
        asked.setdefault(submission(job, settings), comment(job).removeprefix("rule_").replace("_wildcards_", " "))
    found = []
    if settings.array_jobs:
        found.append(
            "slurm-array-jobs: every task of an array would run the first job's command. Remove it from the profile or command line."
        )
    for command, name in asked.items():
        try:
            error = slurm.refusal(command)
        except SlurmError:  # no answer is not a refusal
            continue
        if error and not any(words in error for words in FOR_NOW):
            advice = next((advice for words, advice in REFUSED.items() if words.lower() in error.lower()), "correct the profile")
            options = command.partition("--comment x")[2].removesuffix("--wrap true").strip()
            found.append(f"{name}: SLURM would refuse it: {error}. Remedy: {advice}. Asked for: {options}")
    return found


def submission(job: "Job", settings: "ExecutorSettings") -> str:
    """The sbatch with which the plugin will submit a job, as a question."""
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    account, partition = (job.resources.get(f"slurm_{name}") for name in ("account", "partition"))
    names = {
        "run_uuid": "x",
        "slurm_logfile": os.devnull,
        "comment_str": "x",
        "workdir": "",
        "account": f"-A {shlex.quote(str(account))}" if account and not settings.no_account else "",
        "partition": f"-p {shlex.quote(str(partition))}" if partition else "",
    }
    command = get_submit_command(job, names, settings=settings) + set_gres_string(job)
    return " ".join(command.replace("--parsable", "--test-only").split()) + " --wrap true"


def comment(job: "Job") -> str:
    """What tells a job of ours in squeue."""
    wildcards = "_".join(map(str, job.wildcards)).replace("/", "_") if job.wildcards else ""
    return f"rule_{job.name}_wildcards_{wildcards}" if wildcards else f"rule_{job.name}"


def end_left_over(slurm: Slurm, jobs: Iterable["Job"], tell: Callable[[str], None]) -> None:
    """A workflow that was killed leaves its jobs behind, and a new one submits them again: those end first, and save."""
    wanted = {comment(job) for job in jobs}

    def left() -> list[QueuedJob]:
        return [job for job in jobs_here(slurm) if job.comment in wanted and job.state not in OVER]

    if found := left():
        tell(f"{', '.join(map(str, found))}: left over from an earlier workflow here; ending them. Trainings save, and go on in new jobs.")
        slurm.cancel(*(job.number for job in found))
        end = time.monotonic() + ENDING_SECONDS
        while (found := left()) and time.monotonic() < end:
            time.sleep(1)
        if found:
            tell(f"{', '.join(map(str, found))}: did not end within {ENDING_SECONDS} seconds; new jobs will end them before they train.")
