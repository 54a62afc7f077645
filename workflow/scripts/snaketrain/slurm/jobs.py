"""Jobs as SLURM's programs show them."""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

OF_A_RUN = ("train_model", "select_checkpoint", "evaluate_model")  # what a run may have in one job, in the order in which it runs
OF_SHARDS = ("survey_shard", "prepare_shard")  # several shards may be one job
GROUP = re.compile(
    "rule_(?P<name>(?!.*_wildcards_).+?)_"
    f"(?P<stages>(evaluate_model_|select_checkpoint_)*(evaluate_model|select_checkpoint|train_model)|{'|'.join(OF_SHARDS)})"
)


@dataclass(frozen=True)
class Work:
    """What a job does, as the comment tells that Snakemake's plugin gives it."""

    stages: tuple[str, ...]  # several where Snakemake submits them as one job
    name: str  # of the run, data set or model; of two wildcards `large_2`
    is_group: bool = False

    @classmethod
    def of(cls, comment: str) -> "Work":
        if group := GROUP.fullmatch(comment):  # the run or the shards, and the stages in the order of the alphabet
            stages = tuple(stage for stage in (*OF_A_RUN, *OF_SHARDS) if stage in group["stages"])
            return cls(stages, group["name"], is_group=True)
        stage, _, name = comment.removeprefix("rule_").partition("_wildcards_")
        return cls((stage,), name)

    @property
    def stage(self) -> str:
        """The first one."""
        return self.stages[0]

    @property
    def run(self) -> str:
        """The run, where the job works on one: the rungs of a search are parts of one training."""
        return self.name.rpartition("_")[0] if self.stage == "train_rung" else self.name

    @property
    def results(self) -> set[tuple[str, str]]:
        """What it writes: a run has one training folder, whether it is trained rung by rung or at once."""
        return {("train_model" if stage == "train_rung" else stage, self.run) for stage in self.stages}

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


@dataclass(frozen=True)
class Allocation:
    """The nodes a running job was given. A requeued job keeps its number; `restarts` counts its starts."""

    number: str
    restarts: int
    hosts: tuple[str, ...]
    gpus: int = 0  # on each node; of unequal nodes, the fewest
    script_host: str = ""  # the node that runs the job's script
    ends_at: float | None = None  # its time limit, in seconds since the epoch; None if it has none


def moment_of(shown: str) -> float | None:
    """A time as SLURM shows it, in the time zone of this machine; None where it shows none, such as `Unknown`."""
    try:
        return datetime.fromisoformat(shown).timestamp()
    except ValueError:
        return None


def gpus_of(job: str) -> int:
    """The GPUs of a job on each of its nodes, from `scontrol show job --details`: `GRES=gpu:a100:4(IDX:0-3)` for each group of nodes."""
    groups = re.findall(r" CPU_IDs=\S+ Mem=\S+ GRES=(\S*)", job)
    return min((sum(int(count) for count in re.findall(r"\bgpu:(?:[^:,(]+:)?(\d+)", group)) for group in groups), default=0)
