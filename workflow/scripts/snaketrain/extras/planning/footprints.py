"""What one process of a training needs, and how that of a deep model, or of many microbatches, follows from smaller ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from snaketrain.config.schema import Settings
from snaketrain.orchestration.strategy_declarations import strategy_info
from snaketrain.strategies.losses import MicroBatches
from snaketrain.strategies.pipeline import owners

# Two depths of which a deep model's figures are extended. Both must be deep enough for the same moment to be the fullest: with one
# and three layers a loss over a large vocabulary hides all else.
DEPTHS = 4, 7
STATES = "parameters", "gradients", "optimizer"  # parts that do not depend on the batch


def on_line(at: float, first: tuple[float, float], second: tuple[float, float]) -> float:
    """The value at a point, of the line through two others."""
    return first[1] + (second[1] - first[1]) * (at - first[0]) / (second[0] - first[0])


@dataclass(frozen=True)
class Work:
    """What one process computes and exchanges in a step."""

    flops: float
    exchanged: Mapping[str, float]  # bytes by operation

    def extended(self, more: "Work", microbatches: tuple[int, int], wanted: int) -> "Work":
        """The work of as many microbatches as are wanted, on the line through this one and one of more of them."""

        def at(few: float, many: float) -> float:
            return on_line(wanted, (microbatches[0], few), (microbatches[1], many))

        exchanged = {name: at(self.exchanged.get(name, size), size) for name, size in more.exchanged.items()}
        return Work(at(self.flops, more.flops), exchanged)


@dataclass(frozen=True)
class Footprint:
    """What one process of a training needs for its largest batch; bytes, unless it says otherwise."""

    moments: dict[str, dict[str, float]]  # by phase: each part at the fullest moment
    flops: float  # of a step
    exchanged: Mapping[str, float]  # in a step, by operation
    parameters: float  # their number in the whole model
    weights: float  # of the whole model, as checkpoints hold them
    optimizer_state: float  # of the whole model
    built: float  # on the host, by each process that builds the model

    @property
    def phase(self) -> str:
        """The phase with the fullest moment."""
        return max(self.moments, key=lambda phase: sum(self.moments[phase].values()))

    @property
    def parts(self) -> dict[str, float]:
        """What lives at the fullest moment."""
        return self.moments[self.phase]

    @property
    def peak(self) -> float:
        return sum(self.parts.values())

    @property
    def states(self) -> float:
        """What does not depend on the batch."""
        return sum(self.parts[part] for part in STATES)

    @property
    def lasting(self) -> dict[str, float]:
        """What is left of the states when the weights are updated."""
        return {part: self.moments["update"][part] for part in STATES}

    def without(self, bytes_of: Mapping[str, float]) -> "Footprint":
        """So much less of these parts."""
        moments = {
            phase: {part: max(0.0, size - bytes_of.get(part, 0.0)) for part, size in parts.items()} for phase, parts in self.moments.items()
        }
        return replace(self, moments=moments)

    def extended(self, deeper: "Footprint", depths: tuple[int, int], depth: int) -> "Footprint":
        """The footprint at a depth, on the line through this one and a deeper one, which are at two `depths`."""

        def at(few: float, more: float) -> float:
            return on_line(depth, (depths[0], few), (depths[1], more))

        moments = {
            phase: {part: max(0.0, at(of_part, deeper.moments[phase][part])) for part, of_part in parts.items()}
            for phase, parts in self.moments.items()
            if phase in deeper.moments
        }
        exchanged = {name: at(size, deeper.exchanged.get(name, size)) for name, size in self.exchanged.items()}
        sizes = {
            name: at(getattr(self, name), getattr(deeper, name)) for name in ("flops", "parameters", "weights", "optimizer_state", "built")
        }
        return Footprint(moments=moments, exchanged=exchanged, **sizes)


# --- The ranks of a pipeline differ: which of them a plan traces, on how many blocks and microbatches, and how their figures are combined.


@dataclass(frozen=True)
class Pipeline:
    """`ranks`: those that hold different stages; 1 without a pipeline."""

    ranks: int = 1
    stages: int = 1

    @classmethod
    def of(cls, run: Settings, processes: int) -> "Pipeline":
        strategy = run.train.strategy
        ranks = strategy_info(strategy.use).mesh(strategy.arguments, processes).pipeline
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
