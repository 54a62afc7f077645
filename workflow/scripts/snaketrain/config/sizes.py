"""How many nodes a training may run on, and how its processes share the work in each dimension of a mesh. Checked here alone, before any job and when a strategy starts."""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeCounts:
    fewest: int
    most: int
    spares: int = 0

    @classmethod
    def of(cls, text: str) -> "NodeCounts":
        number = "([1-9][0-9]{0,4})"
        if not (found := re.fullmatch(rf"{number}(?:-{number}|\+{number})?", text)):
            raise ValueError(
                f"{text!r} is not a number of nodes: write a number such as 2, a range such as 1-4, or 4+1 for four and a spare"
            )
        fewest, most, spares = (int(group) if group else None for group in found.groups())
        counts = cls(fewest or 0, most or fewest or 0, spares or 0)
        if counts.most < counts.fewest:
            raise ValueError(f"{text} goes down: write the smaller number first")
        return counts

    @property
    def varies(self) -> bool:
        """Whether a training may start on other numbers of nodes than its job asked for."""
        return self.most > self.fewest or self.spares > 0

    @property
    def asked(self) -> str:
        """What SLURM is asked for: spares are nodes like the others."""
        return f"{self.fewest}-{self.most}" if self.most > self.fewest else str(self.fewest + self.spares)

    @property
    def fewest_asked(self) -> int:
        return self.fewest + self.spares


# --- the mesh

SETTING = "train.strategy.arguments"
# From the slowest connection to the fastest: neighbours are those whose exchanges hold up the computation most
DIMENSIONS = ("pipeline", "replicate", "shard", "expert", "context", "tensor")

CONTEXT_ATTENTIONS = ("gather", "ulysses")  # the first is the default
SCHEDULES = ("1f1b", "interleaved", "zbv")
CHOICES = {"context_attention": CONTEXT_ATTENTIONS, "schedule": SCHEDULES}
OPTIONS = {  # the dimensions that use them
    "plan": ("tensor",), "sequence_parallel": ("tensor",), "context_attention": ("context",), "loss_parallel": ("tensor", "context"),
    "schedule": ("pipeline",),
}  # fmt: skip
EXCLUDED = {  # by a dimension
    "pipeline": ("context", "sequence_parallel", "loss_parallel", "build_once", "cpu_offload", "exchange_each_piece"),
    "expert": ("context", "tensor", "build_once", "cpu_offload"),
}


class InvalidShape(Exception):
    """Degrees that do not fit together, or not the number of processes; the message names the settings."""


@dataclass(frozen=True)
class MeshShape:
    """The number of processes in each dimension."""

    replicate: int = 1
    shard: int = 1
    expert: int = 1
    pipeline: int = 1
    context: int = 1
    tensor: int = 1

    @property
    def data_parallel_size(self) -> int:
        """Processes that work on different examples."""
        return self.replicate * self.shard * self.expert

    @property
    def model_parallel_size(self) -> int:
        """Processes that work on the same examples."""
        return self.pipeline * self.context * self.tensor

    def data_parallel_rank(self, rank: int) -> int:
        """Which examples a process works on."""
        return rank // (self.context * self.tensor) % self.data_parallel_size

    def random_rank(self, rank: int) -> int:
        """Which random numbers a process draws: others for each piece of a sequence, the same for all parts of a matrix."""
        return rank // self.tensor % (self.data_parallel_size * self.context)


def mesh_shape(given: Mapping[str, object], processes: int, counted: str = "compute.processes") -> MeshShape:
    """The degree of each dimension. -1 stands for the processes that the others leave; `shard` takes them if no other does.

    `counted` names what sets the number of processes.
    """
    degrees = {name: degree for name, value in given.items() if value is not None and (degree := _degree(name, value)) != 1}
    filling = [name for name, degree in degrees.items() if degree == -1]
    if len(filling) > 1:
        raise InvalidShape(f"{_settings(filling)} are -1, but only one can stand for the processes that the others leave")
    fixed = {name: degree for name, degree in degrees.items() if degree != -1}
    product = math.prod(fixed.values())
    described = " times ".join(f"{SETTING}.{name} ({degree})" for name, degree in fixed.items())
    if processes % product:
        remedy = "the processes are arranged in a grid, so make one a multiple of the other"
        raise InvalidShape(f"{described} does not divide {counted} ({processes}): {remedy}")
    if not filling and "shard" not in given:
        filling = ["shard"]
    if not filling and product != processes:
        remedy = f"set {SETTING}.shard to -1, or leave it out, so that it takes them"
        raise InvalidShape(f"{described or f'{SETTING}.shard (1)'} leaves processes over, since {counted} is {processes}: {remedy}")
    return MeshShape(**fixed | dict.fromkeys(filling, processes // product))


def is_used(arguments: Mapping[str, object], dimension: str) -> bool:
    """Whether more than one process may share the work in a dimension; null stands for 1."""
    return arguments.get(dimension) not in (None, 1)


def option_errors(arguments: Mapping[str, object]) -> Iterator[str]:
    """Options of dimensions that are not used, or that do not exist."""
    for option, dimensions in OPTIONS.items():
        default = CHOICES[option][0] if option in CHOICES else None
        if arguments.get(option) not in (None, False, default) and not any(is_used(arguments, each) for each in dimensions):
            needed = " or ".join(f"{SETTING}.{dimension}" for dimension in dimensions)
            yield f"{SETTING}.{option}: has no effect without {needed}: set it, or remove `{option}`"
    for option, choices in CHOICES.items():
        if (chosen := arguments.get(option, choices[0])) not in choices:
            yield f"{SETTING}.{option}: is {chosen!r}, which is not one of {', '.join(choices)}"
    for dimension, option in ((each, option) for each in EXCLUDED if is_used(arguments, each) for option in EXCLUDED[each]):
        if is_used(arguments, option) if option in DIMENSIONS else arguments.get(option):
            yield f"{SETTING}.{option}: does not work with {SETTING}.{dimension}: remove one of them"


def compile_error(arguments: Mapping[str, object], degrees: Collection[str]) -> str | None:
    """Why train.compile is refused with a strategy's arguments, or with the `degrees` that it always has. benchmarks/compiling.py compares the
    other ones with `single`."""
    if "tensor" in degrees or is_used(arguments, "tensor"):
        return f"train.compile: torch 2.13 cannot compile matrices that {SETTING}.tensor splits: remove train.compile, or shard instead"
    if is_used(arguments, "context") and arguments.get("context_attention", CONTEXT_ATTENTIONS[0]) == "gather":
        return f"train.compile: torch 2.13 cannot compile {SETTING}.context_attention: gather, the default: use ulysses, or remove train.compile"
    if is_used(arguments, "pipeline") and arguments.get("schedule") == "zbv":
        return f"train.compile: fails in torch 2.13 with {SETTING}.schedule: zbv: use another schedule, or remove train.compile"
    used = [name for name in ("pipeline", "expert", "context") if is_used(arguments, name)]
    if len(used) > 1:
        return f"train.compile: was not tried with {_settings(used)} together: remove it, or all but one of them"
    return None


def microbatch_error(arguments: Mapping[str, object], stages: int, microbatches: int, may_double: bool = False) -> str | None:
    """Why the schedule of a pipeline with so many processes cannot run a batch in so many microbatches, or in twice as many."""
    if microbatches < stages:
        return (
            f"train.accumulate ({microbatches}) is less than the stages of a pipeline, {SETTING}.pipeline ({stages}), which "
            f"its microbatches keep busy: make it at least {stages}, better {4 * stages}"
        )
    if stages == 1 or arguments.get("schedule") != "interleaved":
        return None
    rounds = max(1, microbatches // stages)
    if microbatches % rounds:
        return (
            f"train.accumulate ({microbatches}) cannot be divided into {rounds} equal rounds, in each of which {SETTING}.schedule: interleaved "
            f"runs at least {SETTING}.pipeline ({stages}) microbatches: make it {stages * rounds}, or use another schedule"
        )
    if may_double and microbatches % stages:
        return (
            f"compute.reduce_batch_on_oom: doubles train.accumulate ({microbatches}) when memory runs out, and {SETTING}.schedule: interleaved "
            f"may not be able to run that many: make it a multiple of {SETTING}.pipeline ({stages}), or use another schedule"
        )
    return None


def _degree(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or (value < 1 and value != -1):
        raise InvalidShape(f"{SETTING}.{name} is {value}: give a number of processes, or -1 for all that the other dimensions leave")
    return value


def _settings(names: list[str]) -> str:
    return " and ".join(f"{SETTING}.{name}" for name in names)
