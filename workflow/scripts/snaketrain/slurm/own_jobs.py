"""The jobs that workflows in this folder have submitted: how they are named, and how they are told from others."""

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from snaketrain.slurm.client import Slurm, SlurmError
from snaketrain.slurm.jobs import QueuedJob

if TYPE_CHECKING:
    from snakemake.jobs import Job

ENDED_STATES = ("COMPLETED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "CANCELLED", "FAILED", "BOOT_FAIL", "DEADLINE", "PREEMPTED")
NAME_LENGTH = 60  # hundreds of names are one argument of squeue


def jobs_here(slurm: Slurm) -> list[QueuedJob]:
    """The jobs that workflows in this folder have submitted."""
    found, here = slurm.user_jobs(), os.path.realpath(".")
    ours = {folder for folder in {job.folder for job in found} if os.path.realpath(folder) == here}
    commented = (with_own_comment(slurm, job) for job in found if job.folder in ours)
    return [job for job in commented if job.comment.startswith("rule_")]


def with_own_comment(slurm: Slurm, job: QueuedJob) -> QueuedJob:
    """Some sites rewrite a job's comment. Where its log goes says the same: `rule_<name>/<wildcards>/<number>.log`, or `group_<name>/<number>.log`."""
    if job.comment.startswith("rule_"):
        return job
    try:
        folder = slurm.log_of(job.number).parent
    except SlurmError:  # it has ended, or SLURM does not answer
        return job
    if folder.parent.name.startswith("rule_"):
        return replace(job, comment=f"{folder.parent.name}_wildcards_{folder.name}")
    return replace(job, comment=re.sub("^group_", "rule_", folder.name))


def comment(job: "Job") -> str:
    """How a job of ours is recognised in squeue."""
    wildcards = "_".join(map(str, getattr(job, "wildcards", ()))).replace("/", "_")  # a group of jobs has none
    return f"rule_{job.name}_wildcards_{wildcards}" if wildcards else f"rule_{job.name}"


def job_name(job: "Job") -> str:
    """What plain squeue shows: `train_model:large`. A name has no comma, which separates names in a question, and no blank."""
    return re.sub(r"[^\w.=+:-]", "_", ":".join([job.name, *getattr(job, "wildcards", ())]), flags=re.ASCII)[:NAME_LENGTH]
