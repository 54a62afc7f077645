"""The section `compute`."""

import shlex
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from snaketrain.settings.base import NotNegative, Positive, Section

SBATCH_SETTINGS = {
    **dict.fromkeys(("--nodes", "-N"), "compute.nodes"),
    **dict.fromkeys(("--ntasks", "-n", "--ntasks-per-node", "--ntasks-per-gpu"), "compute.processes"),
    **dict.fromkeys(("--cpus-per-task", "-c", "--cpus-per-gpu"), "compute.threads"),
    **dict.fromkeys(("--gres", "--gpus", "-G"), "compute.gpus"),
    **dict.fromkeys(("--mem", "--mem-per-cpu"), "compute.memory_mb"),
    **dict.fromkeys(("--time", "-t"), "compute.minutes"),
    **dict.fromkeys(("--partition", "-p"), "compute.partition"),
    **dict.fromkeys(("--signal",), "compute.save_before_limit_seconds"),
    **dict.fromkeys(("--output", "-o", "--error", "-e"), "slurm-logdir of the profile"),
    **dict.fromkeys(("--clusters", "-M"), "slurm_cluster of the profile"),
    **dict.fromkeys(("--requeue", "--no-requeue"), "slurm-requeue of the profile"),
}


class Compute(Section):
    """Where and on how much it runs. Changing it makes nothing stale."""

    nodes: Annotated[str, Field(pattern=r"^[1-9][0-9]*(-[1-9][0-9]*)?$")] = Field(
        "1", description="machines of a training under SLURM; `1-4` takes as many as there are, each time that its job starts"
    )
    processes: Positive = Field(1, description="training processes on each node; several are started by torchrun's agent")
    threads: Positive = Field(2, description="CPU cores of a training on each node, shared by its processes, and of a preparation")
    gpus: NotNegative = Field(0, description="GPUs on each node, to be asked of SLURM; one for each process")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto` takes a GPU where there is one")
    launcher: Literal["auto", "torchrun", "srun", "env"] = Field(
        "auto",
        description="`srun` starts torchrun on each node of a SLURM job, and `auto` does so inside of one; with `env`, `launch_command` starts the "
        "processes, which find their ranks in the environment, as under mpiexec or aprun",
    )
    launch_command: str = Field(
        "mpiexec -n {processes}",
        description="for the launcher `env`: what stands in front of python, as shell text: `$NAME` and quotes mean there what they mean in a shell",
    )
    memory_mb: Positive = Field(4000, description="memory of a training on each node, to be asked of SLURM")
    minutes: Positive = Field(120, description="time limit of a SLURM job; a longer training saves, is queued again and goes on")
    save_before_limit_seconds: NotNegative = Field(120, description="how long before the time limit a training saves and is queued again")
    partition: str | None = Field(None, description="of SLURM, for training and evaluation; none: the one in the profile")
    sbatch: str = Field(
        "", description="further options of sbatch, `--constraint=a100 --exclusive`, with quotes as in a shell; nothing in them is executed"
    )
    stall_seconds: Annotated[float, Field(gt=0)] = Field(
        1800, description="a training or an evaluation in which nothing moves for so long says which process is where, and ends"
    )
    restarts: NotNegative = Field(
        3,
        description="how often in a row, without a new checkpoint, a training of several processes is started again on the spot when one was lost",
    )
    reduce_batch_on_oom: bool = Field(
        False, description="work off each batch in more pieces when the memory runs out; the result is the same"
    )
    keep_checkpoints: Positive = Field(2, description="how many of the best checkpoints are kept, besides the last")

    @field_validator("nodes")
    @classmethod
    def _in_order(cls, value: str) -> str:
        first, _, last = value.partition("-")
        if last and int(last) < int(first):
            raise ValueError(f"{value} goes down: write the smaller number first")
        return value

    @field_validator("sbatch")
    @classmethod
    def _no_other_setting(cls, value: str) -> str:
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"is not what a shell takes: {error}") from None
        for word in words:
            if setting := SBATCH_SETTINGS.get(word.partition("=")[0]):
                raise ValueError(f"`{word.partition('=')[0]}` is asked for by {setting}: use that instead")
        return value

    @model_validator(mode="after")
    def _slurm_gives_so_many(self) -> "Compute":
        counts = self.node_counts
        if len(counts) > 1 and counts[-1] > counts[0] * self.threads:
            raise ValueError(
                f"of `nodes` {self.nodes} with {self.threads} `threads` SLURM gives no more than {counts[0] * self.threads}: "
                "ask for a higher first number, or more threads"
            )
        return self

    @property
    def node_counts(self) -> range:
        first, _, last = self.nodes.partition("-")
        return range(int(first), int(last or first) + 1)
