"""The section `compute`."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from snaketrain.config.schema.base import LARGEST, NotNegative, Positive, Section
from snaketrain.config.sizes import NodeCounts
from snaketrain.runtime.credentials import is_sure_name
from snaketrain.runtime.secret_forms import without_secrets

# --- The environment of a training's processes on each node: variables and a container.

# variables that are set here, with what to do instead
OURS = {
    "OMP_NUM_THREADS": "set `threads`, which are shared by a node's processes",
    "TOKENIZERS_PARALLELISM": "it is always true",
    "HF_HUB_OFFLINE": "it is always 1, since trainings and evaluations use no network",
    "TORCHELASTIC_": "torchrun sets it",
    "SNAKETRAIN_": "it is for internal use",
    "SLURM_": "SLURM sets it; use `sbatch` for options",
} | dict.fromkeys(
    ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    "the launcher sets it",
)


def environment_problems(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield f"`environment`: {name!r} cannot be the name of a variable: use letters, digits and _, not beginning with a digit"
        elif ours := next((why for mine, why in OURS.items() if name == mine or (mine.endswith("_") and name.startswith(mine))), None):
            yield f"`environment.{name}` cannot be set: {ours}"
        elif is_sure_name(name) or without_secrets(value) != value:
            yield (
                f"`environment.{name}` holds a secret, which everybody on the node could read in the list of processes: remove it here, and export it "
                "in the shell that starts snakemake; jobs inherit it"
            )
        elif "\0" in value:
            yield f"`environment.{name}` contains a null character, which no variable can hold: remove it"


class Container(Section):
    """The container in which training and evaluation run."""

    short_for = "image"
    image: str = Field(description="a file such as `image.sif`, or whatever else the runtime takes", min_length=1)
    runtime: Literal["apptainer", "singularity", "pyxis"] = Field(
        "apptainer", description="what starts it; `pyxis` is the plugin of SLURM that adds `srun --container-image`"
    )
    binds: list[str] = Field(
        [], description="further folders to bind, as `/data` or `/data:/mnt:ro`; the working directory and this project are always bound"
    )
    python: str = Field("python3", description="the Python inside, with the packages of requirements.lock", min_length=1)

    def contradictions(self) -> Iterator[str]:
        for name in ("image", "python"):
            if getattr(self, name).startswith("-"):
                yield f"`{name}`: {getattr(self, name)!r} begins with a dash, and would be read as an option: write it without"
        for bind in self.binds:
            if not bind.startswith("/") or "," in bind:
                yield f"`binds`: {bind!r} is not an absolute path, or has a comma: write a path such as /data, or /data:/mnt:ro"


SBATCH_SETTINGS = {
    **dict.fromkeys(("--nodes", "-N"), "compute.nodes"),
    **dict.fromkeys(("--ntasks", "-n", "--ntasks-per-node", "--ntasks-per-gpu"), "compute.processes"),
    **dict.fromkeys(("--cpus-per-task", "-c", "--cpus-per-gpu"), "compute.threads"),
    **dict.fromkeys(("--gres", "--gpus", "-G"), "compute.gpus"),
    **dict.fromkeys(("--mem", "--mem-per-cpu"), "compute.memory_mb"),
    **dict.fromkeys(("--time", "-t"), "compute.minutes"),
    **dict.fromkeys(("--partition", "-p"), "compute.partition"),
    **dict.fromkeys(("--signal",), "compute.save_before_limit_seconds"),
    **dict.fromkeys(("--output", "-o", "--error", "-e"), "slurm-steady-logdir of the profile"),
    **dict.fromkeys(("--requeue", "--no-requeue"), "slurm-steady-requeue of the profile"),
}
SBATCH_UNFIT = {
    **dict.fromkeys(("--array", "-a"), "each task of an array would be the whole stage: use a sweep for several trainings"),
    **dict.fromkeys(
        ("--clusters", "-M"), "squeue here does not list the jobs of another cluster: start snakemake on a login node of that one"
    ),
    **dict.fromkeys(("--job-name", "-J", "--comment"), "by it the workflow knows its jobs again"),
    **dict.fromkeys(("--wrap", "--chdir", "-D", "--open-mode", "--parsable"), "the workflow sets it"),
    **dict.fromkeys(
        ("--wait", "-W", "--test-only", "--version", "-V", "--help", "-h", "--usage"), "sbatch would not submit the job and go on"
    ),
}


def node_counts(text: str) -> str:
    NodeCounts.of(text)
    return text


def without_settings(options: str) -> str:
    """Further options of sbatch; refused if a setting already passes the option, or if the workflow cannot go on with it."""
    try:
        words = shlex.split(options)
    except ValueError as error:
        raise ValueError(f"cannot be split into words as in a shell ({error}): correct its quotes and backslashes") from None
    for word in words:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        # sbatch also takes the beginning of an option's name
        refused = next((each for each in (*SBATCH_SETTINGS, *SBATCH_UNFIT) if name.startswith("--") and each.startswith(name)), name)
        if setting := SBATCH_SETTINGS.get(refused):
            raise ValueError(f"`{refused}` is set by {setting}: use that instead")
        if why := SBATCH_UNFIT.get(refused):
            raise ValueError(f"`{refused}` cannot be used, since {why}: remove it")
    return options


Nodes = Annotated[str, AfterValidator(node_counts)]
SbatchOptions = Annotated[str, AfterValidator(without_settings)]


class Profile(Section):
    """Which steps `torch.profiler` traces, in the training's folder `profile`; which ranks: `rank_files`."""

    first_step: Positive = Field(20, description="the first step traced, after warm-up effects")
    steps: Positive = Field(5, description="how many steps are traced")


class EvaluationSize(Section):
    """The size of an evaluation, where it differs from that of the training."""

    in_training_job: bool = Field(
        False,
        description="select and evaluate in the training's SLURM job, right after it and with its size, instead of in a job of its own",
    )
    nodes: Nodes | None = Field(None, description="nodes; null: one, or with a sharded model as many as the training")
    processes: Positive | None = Field(None, description="processes per node; null: one, or with a sharded model as many as the training")
    threads: Positive | None = Field(None, description="CPU cores per node; null: the training's")
    gpus: NotNegative | None = Field(None, description="GPUs per node; null: one for each process if the training has any")
    memory_mb: Positive | None = Field(None, description="memory per node; null: the training's")
    minutes: Positive | None = Field(None, description="time limit of its SLURM job, in which it must finish; null: the training's")
    partition: str | None = Field(None, description="SLURM partition; null: the training's", min_length=1)
    sbatch: SbatchOptions | None = Field(None, description="further options of sbatch; null: the training's")

    def contradictions(self) -> Iterator[str]:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None and name != "in_training_job"]
        if self.in_training_job and given:
            yield f"`in_training_job` evaluates with the training's size, but `{given[0]}` asks for another: remove one of the two"


class Compute(Section):
    """Where stages run, and on how much hardware. Changing it makes nothing stale."""

    nodes: Nodes = Field(
        "1",
        description="nodes of a training under SLURM; `1-4` takes as many as are free each time its job starts; `4+1` trains on four and keeps "
        "one as a spare, which replaces a lost node",
    )
    processes: Positive = Field(1, description="training processes per node; more than one are started by torchrun")
    threads: Positive = Field(2, description="CPU cores per node for a training, shared by its processes; also for `prepare_data`")
    gpus: NotNegative = Field(0, description="GPUs per node, requested from SLURM; one for each process")
    memory_gb_of_gpu: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        None,
        description="memory of one GPU in GiB, as `nvidia-smi` shows it: a run that cannot fit is refused before any job; null: not checked",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="`auto` uses a GPU if there is one, and requires one if `gpus` or `sbatch` request GPUs"
    )
    launcher: Literal["auto", "torchrun", "srun", "env"] = Field(
        "auto",
        description="`srun` starts torchrun on each node of a SLURM job, and `auto` does so inside a job; with `env`, `launch_command` starts the "
        "processes, which read their ranks from the environment, as under mpiexec or aprun",
    )
    launch_command: str = Field(
        "mpiexec -n {processes}",
        description="for the launcher `env`: the command in front of python; `$NAME` and quotes work as in a shell",
        min_length=1,
    )
    interface: str | None = Field(
        None,
        description="network interface for the communication between nodes of a SLURM job, such as ib0; null: the system chooses",
        min_length=1,
    )
    bind: Literal["none", "node", "socket", "exclusive", "core-complex"] = Field(
        "none",
        description="binds each process to cores near its GPU, as `torchrun --numa-binding` does: to all of its NUMA `node` or `socket`, or, "
        "`exclusive`, to cores of its own there; needs the program numactl",
    )
    memory_mb: Positive = Field(4000, description="memory per node for a training, requested from SLURM")
    minutes: Positive = Field(120, description="time limit of a SLURM job; a longer training saves, is requeued and resumes")
    save_before_limit_seconds: NotNegative = Field(120, description="how long before the time limit a training saves and is requeued")
    partition: str | None = Field(None, description="SLURM partition; null: the one in the profile", min_length=1)
    sbatch: SbatchOptions = Field(
        "",
        description="further options of sbatch, such as `--constraint=a100 --exclusive`, with quotes as in a shell; nothing in them is executed",
    )
    environment: dict[str, str] = Field(
        {},
        description="environment variables of training and evaluation on each node: `{NCCL_SOCKET_IFNAME: ib0}`; export secrets in the shell that "
        "starts snakemake instead, jobs inherit them",
    )
    setup: str = Field(
        "",
        description="bash commands that each node runs before a training or an evaluation: `module load cuda`; if one of them fails, so does the job",
    )
    container: Container | None = Field(None, description="in which training and evaluation run; only an image: `container: image.sif`")
    stall_seconds: Annotated[float, Field(gt=0, le=LARGEST)] = Field(
        1800, description="a training or evaluation without progress for this long logs the stack of every process and ends"
    )
    restarts: NotNegative = Field(
        3,
        description="how often in a row, without a new checkpoint in between, a training of several processes is restarted within its job after "
        "one of them was lost, also under SLURM",
    )
    rank_files: Literal["node", "all"] = Field(
        "node",
        description="which ranks keep their own files in the training's `logs` and `profile`: the first of each node, or all; a rank that fails "
        "always writes a report",
    )
    profile: Profile | None = Field(None, description="trace a few steps of each training with torch.profiler; null: no trace")
    reduce_batch_on_oom: bool = Field(
        False, description="split batches into more microbatches when memory runs out; the result is the same"
    )
    resume_changed: bool = Field(
        False,
        description="continue an unfinished training whose code, `train` or `select` has changed, instead of setting it aside and beginning anew; its "
        "result is that of neither: it is marked as mixed, shares no steps and is not ranked. Not for trunks and searches",
    )
    rerun_on_upgrade: bool = Field(
        False,
        description="make results again that were made with other versions of torch, transformers and other packages that compute than those installed "
        "now; without it a line at the start names them",
    )
    loader_workers: NotNegative | Literal["auto"] = Field(
        0,
        description="processes that load batches ahead, forked from each training process; `auto`: none, or up to its share of `threads` if "
        "it waits for data. The number does not change the result",
    )
    keep_checkpoints: Positive = Field(2, description="how many of the best checkpoints are kept, besides the last")
    checkpoint_format: Literal["auto", "whole", "sharded"] = Field(
        "auto",
        description="`whole`: rank 0 gathers and writes each module as one file; `sharded`: each rank writes what it holds; `auto`: sharded if the "
        "strategy shards the model. Any strategy resumes from either",
    )
    evaluation: EvaluationSize | None = Field(
        None,
        description="the size of an evaluation; null: one process on one node, with one GPU if the training has any, and the training's threads, memory "
        "and time limit; if the strategy shards the model, the training's size",
    )

    def contradictions(self) -> Iterator[str]:
        yield from environment_problems(self.environment)
        if self.container and self.container.runtime == "pyxis" and self.launcher in ("torchrun", "env"):
            yield f"`container.runtime` is pyxis, which needs srun, but `launcher` is {self.launcher}: set it to auto"
        counts = self.node_counts
        if len(counts) > 1 and counts[-1] > counts[0] * self.threads:
            yield (
                f"`nodes` is {self.nodes}, but with {self.threads} `threads` SLURM allocates at most {counts[0] * self.threads} nodes: "
                "raise the first number, or `threads`"
            )
        if self.device == "cpu" and self.memory_gb_of_gpu is not None:
            yield f"`device` is cpu, but `memory_gb_of_gpu` is {self.memory_gb_of_gpu:g}: remove it, or set `device` to auto"
        if self.device == "cpu" and self.gpus:
            yield f"`device` is cpu, but `gpus` asks for {self.gpus}: set `gpus` to 0, or `device` to auto"
        if self.device != "cpu" and 0 < self.gpus < self.processes:
            yield f"`processes` ({self.processes}) need a GPU each, but `gpus` is {self.gpus}: make them equal"
        if self.launcher != "env" and self.launch_command != type(self).model_fields["launch_command"].default:
            yield f"`launch_command` is for the `launcher` env, but `launcher` is {self.launcher}: set it to env, or remove `launch_command`"
        if self.bind != "none" and (why := "device" if self.device == "cpu" else "launcher" if self.launcher == "env" else None):
            yield f"`bind` has torchrun bind processes to cores near their GPUs, but `{why}` is {getattr(self, why)}: remove `bind`"
        if self.interface and self.launcher in ("torchrun", "env"):
            yield f"`interface` is for the `launcher` srun, but `launcher` is {self.launcher}: remove `interface`"
        if self.launcher in ("env", "torchrun") and self.nodes != "1":
            where = "this machine" if self.launcher == "torchrun" else "wherever `launch_command` says"
            yield f"the `launcher` {self.launcher} starts processes on {where}: set `nodes` to 1, or `launcher` to auto"
        if self.save_before_limit_seconds >= self.minutes * 60:
            yield (
                f"`save_before_limit_seconds` ({self.save_before_limit_seconds}) is not shorter than the job itself (`minutes`: {self.minutes}): "
                "it would save and be requeued at once"
            )

    @property
    def required_device(self) -> str:
        """A job that asked for GPUs and sees none must fail: on the CPU it would train for weeks."""
        asks_for_gpus = self.gpus > 0 or any(word.startswith("--gpus") for word in shlex.split(self.sbatch))
        return "cuda" if self.device == "auto" and asks_for_gpus else self.device

    @property
    def evaluated_in_training_job(self) -> bool:
        return self.evaluation is not None and self.evaluation.in_training_job

    @property
    def node_counts(self) -> range:
        """On how many nodes it may train."""
        return range(self.counts.fewest, self.counts.most + 1)

    @property
    def counts(self) -> NodeCounts:
        return NodeCounts.of(self.nodes)
