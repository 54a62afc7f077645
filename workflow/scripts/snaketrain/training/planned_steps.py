"""The steps of a plan with their batches, one of which is loaded ahead."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import numpy as np

from snaketrain.data.loading.batches import MicroBatch, shard_batch
from snaketrain.data.loading.loader import Loader, Request, load
from snaketrain.data.loading.streams import Stream, StreamProgress
from snaketrain.data.loading.training_data import TrainingData
from snaketrain.runtime.journal import Clock
from snaketrain.strategies.base import MicroBatches
from snaketrain.training.plan import Plan
from snaketrain.training.recovery import Accumulation
from snaketrain.training.state import TrainState


@dataclass(frozen=True)
class PlannedStep:
    """A step whose batch is loaded, and whose counts are all-reduced while the step before is computed."""

    step: int
    epoch: int
    ids: np.ndarray
    microbatches: MicroBatches
    counted_here: float
    summed: Callable[[], list[float]]  # over all ranks: the count, then what `also_summed` gave


class PlannedSteps:
    """`upcoming` is the next step, None at the end of the plan."""

    def __init__(
        self, state: TrainState, data: TrainingData | Stream, plan: Plan, accumulation: Accumulation, loader: Loader, clock: Clock,
        also_summed: Callable[[], tuple[float, ...]],
    ):  # fmt: skip
        """`also_summed`: further numbers of this rank, exchanged with the counts."""
        self.state, self.data, self.plan, self.accumulation = state, data, plan, accumulation
        self.loader, self.clock, self.also_summed = loader, clock, also_summed
        self.stream = StreamProgress(data.name, data.restart) if isinstance(data, Stream) else None
        self.upcoming: PlannedStep | None = None
        self._loaded: Iterator[PlannedStep] = iter(())

    @contextmanager
    def loading(self) -> Generator[None]:
        """Load the batches of the steps that are left, in worker processes if the loader has any."""
        with closing(self._load()) as self._loaded:
            self.upcoming = next(self._loaded, None)
            yield

    def take(self) -> PlannedStep:
        """The upcoming step, once the batch after it is loaded as well."""
        assert self.upcoming, "the caller has looked"
        taken, self.upcoming = self.upcoming, next(self._loaded, None)
        return taken

    def done(self, step: int) -> None:
        """A checkpoint resumes a stream after this step."""
        if self.stream:
            self.stream.done(step)

    def load(self, ids: np.ndarray, epoch: int) -> MicroBatches:
        """In this process, with today's number of microbatches: again, after running out of memory."""
        return load(self.data, Request(ids, self.share(ids), epoch)).microbatches

    def share(self, ids: np.ndarray) -> list[MicroBatch]:
        """This rank's share of a batch."""
        strategy = self.state.strategy
        return shard_batch(ids, self.accumulation.number, strategy.data_parallel_rank, strategy.data_parallel_size)

    def _load(self) -> Generator[PlannedStep]:
        with closing(self.loader.load(self.data, self._requests())) as batches:
            while True:
                with self.clock.during("data_wait"):
                    found = next(batches, None)
                if found is None:
                    return
                request, microbatches, position = found[0], found[1].microbatches, found[1].position
                assert request.epoch is not None, "of a training"
                if self.stream and position:
                    self.stream.loaded(request.step, position)
                counted = sum(self.state.task.count(batch) for microbatch, batch in microbatches if not microbatch.filler)
                summed = self.state.strategy.all_reduce_scalars_ahead(counted, *self.also_summed())
                yield PlannedStep(request.step, request.epoch, request.ids, microbatches, counted, summed)

    def _requests(self) -> Iterator[Request]:
        """Worker processes read them ahead."""
        for epoch, batches in self.plan.batches.after(self.state.step, self.plan.last):
            for step, ids in batches:
                yield Request(ids, self.share(ids), epoch, step)
