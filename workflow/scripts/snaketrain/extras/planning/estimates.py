"""The plan of one run: whether it fits, what it stores, and how long it takes."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from snaketrain.checking.planned import NotPlannable, fetched_or_local, planned_data, planned_model
from snaketrain.config.schema import Compute, Settings
from snaketrain.extras.planning.footprints import Footprint
from snaketrain.extras.planning.tracing import footprint, runs_on_gpu
from snaketrain.training.building import by_slices, make_task

GIB = 2**30
# What a GPU holds besides tensors. These are assumptions, which were not measured
CONTEXT_GIB = 1.0  # of CUDA and its libraries
NCCL_GIB = 0.5  # with several processes
TOLERANCE = 0.2  # by which a prediction may be too high; on CPUs it was at most 6 % off, on a GPU 9 %
FRAGMENTED = 0.05  # share of the tensors' memory that the allocator cannot use


@dataclass(frozen=True)
class Estimate:
    settings: Settings
    processes: int
    precision: str
    footprint: Footprint
    examples: int  # of the largest batch
    steps: int | None  # of the whole training; unknown before the data is prepared, unless the settings say it
    mean_size: float  # of a batch, of that of the largest
    sharded: bool  # the checkpoints
    builders: int  # processes of one node that build the whole model; none: they read slices of pretrained weights
    assumed: str  # of the data
    copied: float  # bytes of a checkpoint that each process has
    offloaded: float  # bytes that each process keeps in CPU memory and not on its GPU

    @property
    def on_gpu(self) -> bool:
        return runs_on_gpu(self.settings.compute)

    @property
    def overhead(self) -> float:
        """Besides tensors, on a GPU."""
        if not self.on_gpu:
            return 0.0
        return (CONTEXT_GIB + (NCCL_GIB if self.processes > 1 else 0.0)) * GIB + FRAGMENTED * self.footprint.peak

    @property
    def peak(self) -> float:
        return self.footprint.peak + self.overhead

    @property
    def limit(self) -> float | None:
        gib = self.settings.compute.memory_gb_of_gpu
        return None if gib is None else gib * GIB

    @property
    def fits(self) -> bool:
        return self.limit is None or self.peak <= self.limit

    @property
    def cannot_fit(self) -> bool:
        """Also if texts turn out to be shorter than was assumed, and the prediction is too high."""
        needed = self.footprint.states + self.overhead if self.assumed else self.peak
        return self.limit is not None and needed > (1 + TOLERANCE) * self.limit

    @property
    def checkpoint(self) -> float:
        return self.footprint.weights + self.footprint.optimizer_state

    @property
    def checkpoint_files(self) -> int:
        return self.processes if self.sharded else 2

    @property
    def stored(self) -> float:
        """All checkpoints that are kept: the best and the last."""
        return self.checkpoint * (self.settings.compute.keep_checkpoints + 1)

    @property
    def host_memory(self) -> float:
        """Of a node while its processes build the model on the CPU, or while the training continues from a copy that is being saved."""
        processes = self.settings.compute.processes
        copies = self.copied * processes if self.sharded else self.checkpoint
        return max(self.footprint.built * self.builders, self.offloaded * processes + copies)

    @property
    def flops(self) -> float | None:
        """Of the whole training, over all processes; at most, if texts have an assumed length."""
        return None if self.steps is None else self.footprint.flops * self.processes * self.steps * self.mean_size

    def hours(self, flops: float, flops_per_second: float) -> float:
        """Of the whole training, at this rate of each process."""
        return flops / self.processes / flops_per_second / 3600


def processes_of(compute: Compute) -> int:
    """On as few nodes as it may train on, where each process holds most."""
    return compute.node_counts[0] * compute.processes


def plan_run(run: Settings, results: Path) -> Estimate:
    """`results`: where prepared data and fetched models are looked for. Raises NotPlannable."""
    try:
        with tempfile.TemporaryDirectory(prefix="plan-") as scratch:
            return _estimate(run, results, Path(scratch))
    except NotPlannable:
        raise
    except (Exception, SystemExit) as error:  # of the task, the model or the strategy; many libraries raise many kinds
        line = str(error).strip().partition("\n")[0]
        raise NotPlannable(f"{type(error).__name__}: {line}" if not isinstance(error, SystemExit) else line) from error


def _estimate(run: Settings, results: Path, scratch: Path) -> Estimate:
    if run.train.steps == 0:
        raise NotPlannable("train.steps: is 0, so nothing is trained")
    source = run.model.source
    model = planned_model(run, fetched_or_local(source, results, "model.source") if source else None)
    data = planned_data(run, results, scratch)
    processes = processes_of(run.compute)
    precision = run.train.precision if run.train.precision != "auto" else "bf16" if runs_on_gpu(run.compute) else "fp32"
    traced = footprint(run, model, data, processes, precision)
    strategy, shares = traced.strategy, traced.shares
    strategy.rank = min(1, processes - 1)  # a rank other than 0, which may not build the model
    wanted = run.compute.checkpoint_format  # as `make_format` decides, which needs a process group
    sharded = wanted == "sharded" or (wanted == "auto" and strategy.shards_model and processes > 1)
    slices = model.weights and not run.model.initial_weights and by_slices(make_task(run.train), strategy)
    builders = 0 if slices else 1 + strategy.builds * (run.compute.processes - 1)
    whole, lasting = traced.footprint, traced.footprint.lasting
    offloaded = lasting if strategy.offloads and runs_on_gpu(run.compute) else {}
    return Estimate(
        run, processes, precision, whole.without(offloaded), shares.examples, shares.steps, shares.mean_size, sharded, builders,
        data.assumed, lasting["parameters"] + lasting["optimizer"], sum(offloaded.values()),
    )  # fmt: skip
