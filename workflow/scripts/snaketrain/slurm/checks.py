"""What SLURM would refuse, asked before the first job is submitted."""

import os
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from snaketrain.slurm.client import Slurm, SlurmError, comment
from snaketrain.slurm.jobs import Work

if TYPE_CHECKING:
    from snakemake.jobs import Job
    from snakemake_executor_plugin_slurm import ExecutorSettings

REFUSED = {
    "account": "set slurm_account in the profile; `sacctmgr show associations user=$USER` lists the accounts",
    "partition": "set compute.partition, or slurm_partition in the profile; `sinfo --summarize` lists the partitions",
    "node configuration": "no node in the partition has that much: lower compute.memory_mb, compute.threads or compute.gpus (each is for one node), or "
    "compute.nodes; `sinfo --Node --long` shows what there is",
    "Memory": "lower compute.memory_mb, which is for one node, or mem_mb in the profile",
    "gres": "lower compute.gpus, which is for one node; `sinfo --format '%P %G'` shows where there are any",
    "feature": "correct compute.sbatch; `sinfo --format '%P %f'` lists the features",
    "qos": "correct compute.sbatch, or slurm-qos in the profile",
    "time limit": "lower compute.minutes, or runtime in the profile: a longer training saves, is requeued and resumes",
}
TEMPORARY = ("busy", "not available (down", "Unable to contact", "Socket timed out", "temporarily")


def refusals(slurm: Slurm, jobs: Iterable["Job"], settings: "ExecutorSettings") -> list[str]:
    """What SLURM would never accept. Jobs with the same request are checked once."""
    asked: dict[str, str] = {}
    for job in jobs:
        asked.setdefault(submission(job, settings), str(Work.of(comment(job))))
    found = []
    if settings.array_jobs:
        found.append(
            "slurm-array-jobs: every task of an array would run the first job's command. Remove the option from the profile or command line."
        )
    for command, name in asked.items():
        try:
            error = slurm.refusal(command)
        except SlurmError:  # no answer is not a refusal
            continue
        if error and not any(words in error for words in TEMPORARY):
            advice = next((advice for words, advice in REFUSED.items() if words.lower() in error.lower()), "correct the profile")
            options = command.partition("--comment x")[2].removesuffix("--wrap true").strip()
            found.append(f"{name}: SLURM would refuse it: {error}. Remedy: {advice}. Asked for: {options}")
    return found


def submission(job: "Job", settings: "ExecutorSettings") -> str:
    """The command with which the plugin will submit a job, as an `sbatch --test-only`."""
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    account, partition = (job.resources.get(f"slurm_{name}") for name in ("account", "partition"))
    names = {
        "run_uuid": f"{settings.jobname_prefix or ''}x",  # a job of another prefix is not followed: its state is asked for by its name
        "slurm_logfile": os.devnull,
        "comment_str": "x",
        "workdir": "",
        "account": f"-A {shlex.quote(str(account))}" if account and not settings.no_account else "",
        "partition": f"-p {shlex.quote(str(partition))}" if partition else "",
    }
    command = get_submit_command(job, names, settings=settings) + set_gres_string(job)
    return " ".join(command.replace("--parsable", "--test-only").split()) + " --wrap true"
