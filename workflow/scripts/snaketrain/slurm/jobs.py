"""Jobs as SLURM's programs show them: what a job of ours does is told by its comment and its name."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snakemake.jobs import Job

NAME_LENGTH = 60  # hundreds of names are one argument of squeue


OF_A_RUN = ("train_model", "select_checkpoint", "evaluate_model")  # what a run may have in one job, in the order in which it runs
GROUP = re.compile(
    "rule_(?P<name>(?!.*_wildcards_).+?)_(?P<stages>(evaluate_model_|select_checkpoint_)*(evaluate_model|select_checkpoint|train_model))"
)
# Several jobs of one stage may be one, too: their group is named `...-<stage>-<number>`.
GROUP_OF_STAGE = re.compile(r"rule_(?P<name>(?!.*_wildcards_).+-(?P<stages>[a-z_]+)-\d+)_(?P=stages)")


@dataclass(frozen=True)
class Work:
    """What a job does, as the comment tells that Snakemake's plugin gives it."""

    stages: tuple[str, ...]  # several where Snakemake submits them as one job
    name: str  # of the run, data set or model; of two wildcards `large_2`
    is_group: bool = False

    @classmethod
    def of(cls, comment: str) -> "Work":
        if group := GROUP_OF_STAGE.fullmatch(comment):
            return cls((group["stages"],), group["name"], is_group=True)
        if group := GROUP.fullmatch(comment):  # the run, and the stages in the order of the alphabet
            return cls(tuple(stage for stage in OF_A_RUN if stage in group["stages"]), group["name"], is_group=True)
        stage, _, name = comment.removeprefix("rule_").partition("_wildcards_")
        return cls((stage,), name)

    @property
    def stage(self) -> str:
        return self.stages[0]

    def __str__(self) -> str:
        return f"{self.stage} {self.name}".strip()


@dataclass(frozen=True)
class QueuedJob:
    """A job as squeue shows it."""

    number: str
    state: str
    reason: str
    comment: str  # written by Snakemake's plugin: rule_<name>_wildcards_<values>
    nodes: str
    folder: str = ""  # where it was submitted

    @property
    def work(self) -> Work:
        return Work.of(self.comment)

    def __str__(self) -> str:
        return f"SLURM job {self.number} ({self.work})"

    def log(self, folder: Path) -> Path:
        if self.work.is_group:
            return folder / self.comment.replace("rule_", "group_", 1) / f"{self.number}.log"
        return folder / f"rule_{self.work.stage}" / self.work.name / f"{self.number}.log"


def comment(job: "Job") -> str:
    """How a job of ours is recognised in squeue."""
    wildcards = "_".join(map(str, getattr(job, "wildcards", ()))).replace("/", "_")  # a group of jobs has none
    return f"rule_{job.name}_wildcards_{wildcards}" if wildcards else f"rule_{job.name}"


def job_name(job: "Job") -> str:
    """What plain squeue shows: `train_model:large`. A name has no comma, which separates names in a question, and no blank."""
    return re.sub(r"[^\w.=+:-]", "_", ":".join([job.name, *getattr(job, "wildcards", ())]), flags=re.ASCII)[:NAME_LENGTH]
