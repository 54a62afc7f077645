"""The ranks of a pipeline differ: which of them a plan traces, on how many blocks and microbatches, and how their figures are combined."""

from collections.abc import Sequence
from dataclasses import dataclass

from snaketrain.config.schema import Settings
from snaketrain.orchestration.inspection.strategy_declarations import strategy_info
from snaketrain.planning.footprints import DEPTHS, Footprint
from snaketrain.strategies.base import MicroBatches
from snaketrain.strategies.pipeline_runs import owners


@dataclass(frozen=True)
class Pipeline:
    """`ranks`: those that hold different stages; 1 without a pipeline."""

    ranks: int = 1
    stages: int = 1

    @classmethod
    def of(cls, run: Settings, processes: int) -> "Pipeline":
        strategy = run.train.strategy
        ranks = strategy_info(strategy.use).stages(strategy.arguments, processes)
        return cls(ranks, len(owners(str(strategy.arguments.get("schedule", "1f1b")), ranks))) if ranks > 1 else cls()

    @property
    def depths(self) -> tuple[int, int]:
        """The numbers of blocks of which those of a deep model are extended: in a pipeline, two and three for each stage."""
        return (2 * self.stages, 3 * self.stages) if self.ranks > 1 else DEPTHS

    def traced(self, processes: int) -> dict[int, int]:
        """Ranks, and how many of the pipeline each stands for: the first holds the embedding, the last the head, all others neither."""
        apart = processes // self.ranks  # the pipeline is the outermost dimension of the mesh
        last, middle = {(self.ranks - 1) * apart: 1} if self.ranks > 1 else {}, {apart: self.ranks - 2} if self.ranks > 2 else {}
        return {0: 1} | middle | last

    def few(self, microbatches: MicroBatches) -> MicroBatches:
        """So many as fill the pipeline, all of them as large as the largest: more take more time, but no more memory."""
        if self.ranks == 1:
            return microbatches
        largest = max(microbatches, key=lambda item: sum(tensor.numel() for tensor in item[1].values()))
        return [largest] * min(len(microbatches), 2 * self.ranks)


@dataclass(frozen=True)
class World:
    """Whom a traced process stands for."""

    processes: int
    rank: int = 0
    pipeline: Pipeline = Pipeline()


def combined(footprints: Sequence[Footprint], counts: Sequence[int]) -> Footprint:
    """Of each phase the fullest rank, of all else the mean, or for what the model has as a whole the sum."""
    ranks = sum(counts)

    def total(name: str) -> float:
        return sum(float(getattr(each, name)) * count for each, count in zip(footprints, counts, strict=True))

    phases = {phase: None for each in footprints for phase in each.moments}
    moments = {
        phase: max((each.moments[phase] for each in footprints if phase in each.moments), key=lambda parts: sum(parts.values()))
        for phase in phases
    }
    exchanged = {
        name: sum(each.exchanged.get(name, 0.0) * count for each, count in zip(footprints, counts, strict=True)) / ranks
        for name in {name: None for each in footprints for name in each.exchanged}
    }
    whole = footprints[0]
    return Footprint(moments, total("flops") / ranks, exchanged, whole.parameters, total("weights"), total("optimizer_state"), whole.built)
