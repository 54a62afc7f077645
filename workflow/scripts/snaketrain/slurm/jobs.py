"""Jobs as SLURM's programs show them."""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

# the comment of several jobs of a run that Snakemake submits as one: the run, and their rules in the order of the alphabet
GROUP = re.compile(
    "rule_(?P<run>(?!.*_wildcards_).+?)_(evaluate_model_|select_checkpoint_)*(?P<last>evaluate_model|select_checkpoint|train_model)"
)


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
    def stage(self) -> str:
        if group := GROUP.fullmatch(self.comment):
            return group["last"]
        return self.comment.removeprefix("rule_").partition("_wildcards_")[0]

    @property
    def wildcards(self) -> str:
        if group := GROUP.fullmatch(self.comment):
            return group["run"]
        return self.comment.partition("_wildcards_")[2]

    @property
    def title(self) -> str:
        return f"{self.stage} {self.wildcards}".strip()

    def __str__(self) -> str:
        return f"SLURM job {self.number} ({self.title})"

    def log(self, folder: Path) -> Path:
        if GROUP.fullmatch(self.comment):
            return folder / self.comment.replace("rule_", "group_", 1) / f"{self.number}.log"
        return folder / f"rule_{self.stage}" / self.wildcards / f"{self.number}.log"


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
