"""What would be submitted for a job: whether it is what an earlier workflow submitted, and why it would fail."""

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from snakemake_interface_executor_plugins.utils import format_cli_value

from snaketrain.orchestration.submissions import sbatch_command
from snaketrain.runtime.manifests import digest, file_digest
from snaketrain.slurm.client import Slurm, SlurmError
from snaketrain.slurm.jobs import Work, comment

if TYPE_CHECKING:
    from snakemake.dag import DAG
    from snakemake.jobs import Job
    from snakemake.workflow import Workflow
    from snakemake_executor_plugin_slurm import ExecutorSettings

# --- What is submitted: jobs, or groups of jobs.


def to_submit(dag: "DAG") -> list["Job"]:
    return list(dict.fromkeys(dag.get_job_group(job) or job for job in dag.needrun_jobs() if not job.is_local))


def jobs_in(submission: "Job") -> list["Job"]:
    return list(submission.jobs) if submission.is_group() else [submission]


def reads_what_is_there(dag: "DAG", submission: "Job") -> bool:
    """Whether nothing that it reads will be made again."""
    jobs = jobs_in(submission)
    return not any(dag.needrun(before) for job in jobs for before in dag.dependencies[job] if before not in jobs)


def is_done(dag: "DAG", has_results: Callable[["Job"], bool], submission: "Job") -> bool:
    """Whether its results are those that it would make, and it was not asked for by name."""
    return all(not dag.reason(job).forced and has_results(job) for job in jobs_in(submission))


def submission(job: "Job", settings: "ExecutorSettings") -> str:
    """The command with which the plugin will submit a job, as an `sbatch --test-only`."""
    name = f"{settings.jobname_prefix or ''}x"  # a job of another prefix is not followed: its state is asked for by its name
    command = sbatch_command(job, settings, name, os.devnull, "x")
    return " ".join(command.replace("--parsable", "--test-only").split()) + " --wrap true"


def fingerprint(job: "Job", settings: "ExecutorSettings") -> str:
    """The same for two jobs that ask for the same resources and run the same command with the same settings, code and inputs."""
    inputs = {str(path): file_digest(path) for path in sorted(map(str, job.input))}
    params = [str(param) for each in getattr(job, "jobs", [job]) for param in each.params]  # of a group, those of all its jobs
    return digest(submission(job, settings), sorted(params), inputs)


# --- What would be refused or misread, asked before the first job is submitted.

FULL_QUEUE = re.compile("MaxSubmitJob|GrpSubmitJob", re.IGNORECASE)  # all jobs in the queue of a user, an account or a QOS
LIMIT = re.compile(f"{FULL_QUEUE.pattern}|accounting/QOS policy", re.IGNORECASE)  # or what one job may ask for
REFUSED = {
    "accounting/QOS policy": "it asks for more than your account or QOS may have: `sacctmgr show qos` and `sacctmgr show associations user=$USER` list the limits",
    "account": "set slurm_account in the profile; `sacctmgr show associations user=$USER` lists the accounts",
    "partition": "set compute.partition, or slurm_partition in the profile; `sinfo --summarize` lists the partitions",
    "node configuration": "no node in the partition has that much: lower compute.memory_mb, compute.threads or compute.gpus (each is for one node), or "
    "compute.nodes; `sinfo --Node --long` shows what there is",
    "Memory": "lower compute.memory_mb, which is for one node, or mem_mb in the profile",
    "gres": "lower compute.gpus, which is for one node; `sinfo --format '%P %G'` shows where there are any",
    "feature": "correct compute.sbatch; `sinfo --format '%P %f'` lists the features",
    "qos": "correct compute.sbatch, or slurm-steady-qos in the profile",
    "time limit": "lower compute.minutes, or runtime in the profile: a longer training saves, is requeued and resumes",
}
NO_SUCH_NODES = "node configuration is not available"
AWAITS_NODES = "SLURM has just started, and waits until its nodes have registered"
REGISTERING_SECONDS, SECONDS_BETWEEN_QUESTIONS = 300, 2
TEMPORARY = ("busy", "not available (down", "Unable to contact", "Socket timed out", "temporarily")


def not_followed(jobs: Iterable["Job"], settings: "ExecutorSettings") -> list[str]:
    """What would be submitted in a way in which jobs are not found again."""
    found = []
    if settings.array_jobs:
        found.append(
            "slurm-steady-array-jobs: the tasks of an array have one comment, by which no job is known again. Remove the option from the profile or command line."
        )
    if any(job.resources.get(name) for job in jobs for name in ("slurm_cluster", "cluster", "clusters")):
        found.append(
            "slurm_cluster: squeue here does not list the jobs of another cluster. Remove the resource, and start snakemake on a login node of that one."
        )
    return found


def refusals(slurm: Slurm, jobs: Iterable["Job"], settings: "ExecutorSettings", say: Callable[[str], None]) -> list[str]:
    """What SLURM would never accept. Jobs with the same request are checked once."""
    asked: dict[str, str] = {}
    for job in jobs:
        asked.setdefault(submission(job, settings), str(Work.of(comment(job))))
    found = []
    patience = Patience()
    for command, name in asked.items():
        try:
            error = refusal_of_all_nodes(slurm, command, patience, say)
        except SlurmError:  # no answer is not a refusal
            continue
        if not error or any(words in error for words in TEMPORARY) or FULL_QUEUE.search(error):
            continue
        if not (LIMIT.search(error) and jobs_ahead(slurm, 60)):
            advice = next((advice for words, advice in REFUSED.items() if words.lower() in error.lower()), "correct the profile")
            options = command.partition("--comment x")[2].removesuffix("--wrap true").strip()
            found.append(f"{name}: SLURM would refuse it: {error}. Remedy: {advice}. Asked for: {options}")
    return found


class Patience:
    """With a controller that does not know all nodes yet: from the first refusal for that on, whichever job it was of."""

    end: float | None = None

    @property
    def is_over(self) -> bool:
        if self.end is None:
            self.end = time.monotonic() + REGISTERING_SECONDS
        return time.monotonic() >= self.end


def refusal_of_all_nodes(slurm: Slurm, command: str, patience: Patience, say: Callable[[str], None]) -> str | None:
    """Asked again while a controller that has just started does not know all nodes; until then it says that none has what a job asks for."""
    said = False
    while (error := slurm.refusal(command)) and NO_SUCH_NODES in error and not patience.is_over:
        if not awaits_nodes(slurm, error):
            return slurm.refusal(command)  # they may have registered since it was refused
        if not said:
            say(f"{AWAITS_NODES}; asking again for {REGISTERING_SECONDS // 60} minutes whether it would take the jobs.")
            said = True
        time.sleep(SECONDS_BETWEEN_QUESTIONS)
    return error


def awaits_nodes(slurm: Slurm, refused: str, max_age_seconds: float = 0.0) -> bool:
    """Whether a refusal for lack of nodes may be due to those that are not known yet; without an answer it may."""
    try:
        return NO_SUCH_NODES in refused and bool(slurm.unregistered_nodes(max_age_seconds))
    except SlurmError:
        return True


def jobs_ahead(slurm: Slurm, max_age_seconds: float) -> bool:
    """Whether this user has jobs in the queue, as far as is known: a limit that is full now lets others in when they end.

    Many waiting submissions ask this at once, so that an answer may have this age.
    """
    try:
        return slurm.has_jobs(max_age_seconds) or slurm.has_jobs()
    except SlurmError:
        return True


def passed_to_jobs(workflow: "Workflow") -> list[object]:
    """The parts of the command line that are passed on to the Snakemake in each job."""
    paths = [workflow.main_snakefile, os.getcwd(), *workflow.overwrite_configfiles]
    return [*paths, *(workflow.config_settings.config_args or [])]


def misquoted(handed: Iterable[object], in_double_quotes: bool) -> list[str]:
    """Errors for arguments that a job would receive changed: Snakemake quotes paths and `--config` as Python does, not for a shell.

    `in_double_quotes`: the whole command is in double quotes as well, in which a shell executes `$(...)`.
    """
    found = []
    for given in handed:
        text, quoted = str(given), format_cli_value(given, quote=True)
        single, double = quoted == f"'{text}'" and "'" not in text, quoted == f'"{text}"' and not set(text) & set('$`\\"')
        if not (single or double or isinstance(given, Path)):
            found.append(
                f"{text!r}: Snakemake cannot pass it to a job unchanged, because of its quotes, backslashes or line breaks. Remove them."
            )
        elif in_double_quotes and set(text) & set("$`\\"):
            found.append(
                f"{text!r}: the shell that submits jobs would execute it. Set `slurm-steady-pass-command-as-script: true` in the profile, "
                "as profiles/slurm does."
            )
    return found
