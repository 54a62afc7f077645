"""What SLURM knows of this workflow's jobs: what it would refuse, and what a killed workflow left behind."""

import getpass
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


class SlurmMissing(Exception):
    """The profile asks for a SLURM that is not here."""


@dataclass(frozen=True)
class Row:
    """A job as squeue shows it."""

    number: str
    state: str
    reason: str
    comment: str  # as the plugin writes it: rule_<name>_wildcards_<values>
    nodes: str

    def __str__(self) -> str:
        rule, _, wildcards = self.comment.removeprefix("rule_").partition("_wildcards_")
        return f"SLURM job {self.number} ({f'{rule} {wildcards}'.strip()})"

    def log(self, folder: Path) -> Path:
        rule, _, wildcards = self.comment.partition("_wildcards_")
        return folder / rule / wildcards / f"{self.number}.log"


def jobs_here() -> list[Row]:
    """Those that a workflow in this folder has submitted."""
    shown = ask("squeue", "--user", getpass.getuser(), "--states=all", "--noheader", "--format", "%i|%T|%r|%k|%N|%Z")
    rows = [line.split("|", 5) for line in shown.splitlines()]
    here = os.path.realpath(".")
    return [Row(*row[:5]) for row in rows if len(row) == 6 and row[3].startswith("rule_") and os.path.realpath(row[5]) == here]


# --- before anything is submitted


def outlast_outages() -> None:
    """Let Snakemake make our executor where it would make the plugin's; to be called before it makes any."""
    from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

    registry = ExecutorPluginRegistry()
    if registry.is_installed("slurm"):
        from snaketrain.slurm.steady_executor import SteadyExecutor  # the plugin takes a while to load

        registry.get_plugin("slurm").executor = SteadyExecutor


def refusals(jobs: Iterable[Any], settings: Any) -> list[str]:
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
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        error = (done.stderr.strip().splitlines() or ["no answer"])[-1].removeprefix("allocation failure: ").removeprefix("sbatch: error: ")
        if done.returncode and not any(words in error for words in FOR_NOW):
            advice = next((advice for words, advice in REFUSED.items() if words.lower() in error.lower()), "correct the profile")
            options = command.partition("--comment x")[2].removesuffix("--wrap true").strip()
            found.append(f"{name}: SLURM would refuse it: {error}. Remedy: {advice}. Asked for: {options}")
    return found


def submission(job: Any, settings: Any) -> str:
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


def comment(job: Any) -> str:
    """What tells a job of ours in squeue."""
    wildcards = "_".join(map(str, job.wildcards)).replace("/", "_") if job.wildcards else ""
    return f"rule_{job.name}_wildcards_{wildcards}" if wildcards else f"rule_{job.name}"


def end_left_over(jobs: Iterable[Any], tell: Callable[[str], None]) -> None:
    """A workflow that was killed leaves its jobs behind, and a new one submits them again: those end first, and save."""
    wanted = {comment(job) for job in jobs}

    def left() -> list[Row]:
        return [row for row in jobs_here() if row.comment in wanted and row.state not in OVER]

    if rows := left():
        tell(f"{', '.join(map(str, rows))}: left over from an earlier workflow here; ending them. Trainings save, and go on in new jobs.")
        ask("scancel", *(row.number for row in rows))
        end = time.monotonic() + ENDING_SECONDS
        while (rows := left()) and time.monotonic() < end:
            time.sleep(1)
        if rows:
            tell(f"{', '.join(map(str, rows))}: did not end within {ENDING_SECONDS} seconds; new jobs will end them before they train.")


def ask(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise SlurmMissing(f"{command[0]} is not installed here: run the workflow where jobs of SLURM can be submitted") from None
    if done.returncode:
        raise SlurmMissing(f"{shlex.join(command)} failed: {done.stderr.strip()}")
    return done.stdout
