"""What happens at which step, a pure function of the settings and the training data whatever the world size; and the steps with their batches."""

import bisect
import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

from snaketrain.config.references import load
from snaketrain.config.schema import Train, Use
from snaketrain.config.schema.train import PLATEAU, SET_BY_LENGTH
from snaketrain.data.loading.batches import Batches, MicroBatch, Planned, shard_batch
from snaketrain.data.loading.loader import Loader, Request
from snaketrain.data.loading.loader import load as load_batch
from snaketrain.data.loading.streams import Stream, StreamBatches, StreamProgress
from snaketrain.data.loading.training_data import Lengths, TrainingData
from snaketrain.runtime.credentials import resolved
from snaketrain.runtime.journal import Clock
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.strategies.losses import MicroBatches
from snaketrain.training.state import TrainState
from snaketrain.training.step import Accumulation


class TorchSchedule:
    """The rate of a scheduler of torch as a fraction of the learning rate; warm-up steps come before it and do not count.

    It is stepped once per update, and what it computes is written down, so that a resume needs no state of it.
    """

    def __init__(self, scheduler: type[LRScheduler], arguments: JsonObject, learning_rate: float):
        self.scheduler, self.learning_rate = scheduler, learning_rate
        takes = inspect.signature(scheduler).parameters
        self.arguments = arguments | ({"max_lr": learning_rate} if "max_lr" in takes else {})
        self.length = next((name for name in SET_BY_LENGTH if name in takes and name not in arguments), None)
        self.factors: list[float] = []
        self.running: tuple[torch.optim.Optimizer, LRScheduler] | None = None

    def __call__(self, done: int, steps: int) -> float:
        optimizer, scheduler = self.running = self.running or self.begin(steps)
        while len(self.factors) <= done:
            self.factors.append(optimizer.param_groups[0]["lr"] / self.learning_rate)
            if len(self.factors) < steps:  # some allow no more steps than these
                optimizer.step()
                scheduler.step()
        return self.factors[done]

    def begin(self, steps: int) -> tuple[torch.optim.Optimizer, LRScheduler]:
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=self.learning_rate)
        arguments = self.arguments | ({self.length: steps} if self.length else {})
        try:
            return optimizer, self.scheduler(optimizer, **arguments)
        except (TypeError, ValueError) as error:
            raise SystemExit(
                f"train.schedule: {self.scheduler.__name__} cannot be made with the arguments {arguments}: {error}. Correct them."
            ) from error


Schedule = Callable[[int, int], float]


@dataclass(frozen=True)
class Plan:
    train: Train
    batches: Batches | StreamBatches
    steps: int
    epoch_ends: tuple[int, ...]  # the step that ends each epoch; the last one may lie beyond `steps`
    warmup_steps: int
    schedule: Schedule
    group_schedules: dict[int, Schedule]  # of the groups that have their own, by their number in `train.groups`
    branch_steps: tuple[int, ...] = ()  # at which other trainings leave this one; it ends at the last of them

    @classmethod
    def of(cls, train: Train, lengths: Lengths | None, branch_steps: Sequence[int] = ()) -> "Plan":
        """`lengths`: none of a stream."""
        batches = batches_of(train, lengths)
        schedule = schedule_of(train.schedule, train.learning_rate)
        of_groups = {n: schedule_of(group.schedule, train.learning_rate) for n, group in enumerate(train.groups) if group.schedule}
        ends = [batches.count(0) if train.steps != 0 else 0]
        while (ends[-1] < train.steps) if train.steps is not None else (len(ends) < train.epochs):
            ends.append(ends[-1] + batches.count(len(ends)))
        begun = ends[-2] if len(ends) > 1 else 0
        total = train.steps if train.steps is not None else max(1, begun + round((ends[-1] - begun) * (train.epochs - len(ends) + 1)))
        warmup = train.warmup_steps(total)
        if train.warmup >= 1 and warmup >= total > 0:
            raise SystemExit(
                f"train.warmup: {warmup} steps are not fewer than the training has, {total}. Warm up for fewer, or give a fraction below 1."
            )
        if total and train.decay_steps and (problem := train.too_long_decay(total)):
            raise SystemExit(f"train.schedule.arguments: {problem}.")
        return cls(train, batches, total, tuple(ends), warmup, schedule, of_groups, tuple(sorted(branch_steps)))

    @property
    def last(self) -> int:
        """The last step that is taken."""
        return self.branch_steps[-1] if self.branch_steps else self.steps

    def epochs_done(self, step: int) -> float:
        epoch, first, last = self._epoch(step)
        return epoch + (step - first) / (last - first)

    def step_at(self, share: float) -> int:
        """The step at which a share of all steps is done; at least the first."""
        return max(1, round(share * self.steps))

    def evaluates_at(self, step: int) -> bool:
        """At equal intervals within each epoch, or every `evaluate_every` steps; and at the end."""
        if step == self.steps:
            return True
        if self.train.evaluate_every is not None:
            return step % self.train.evaluate_every == 0
        _, first, last = self._epoch(step)
        within, length, n = step - first, last - first, self.train.evaluations_per_epoch
        return (within * n) // length > ((within - 1) * n) // length

    def saves_at(self, step: int) -> bool:
        """Regardless of the metrics and of the time. Without a setting for it, every evaluated step is saved, and not only the best so far."""
        if step == self.steps or step in self.branch_steps:
            return True
        if self.train.save_every is None:
            return self.train.save_every_minutes is None and self.evaluates_at(step)
        return step % self.train.save_every == 0

    def learning_rate_at(self, step: int) -> float:
        """The rate of the update that leads to `step`: a linear warm-up, then the schedule."""
        return self._rate(self.schedule, step)

    def group_rates_at(self, step: int) -> dict[int, float]:
        """The rates of the groups that have a schedule of their own."""
        return {number: self._rate(schedule, step) for number, schedule in self.group_schedules.items()}

    def _rate(self, schedule: Schedule, step: int) -> float:
        done = step - 1
        if done < self.warmup_steps:
            return self.train.learning_rate * done / self.warmup_steps
        return self.train.learning_rate * schedule(done - self.warmup_steps, max(1, self.steps - self.warmup_steps))

    def _epoch(self, step: int) -> tuple[int, int, int]:
        """The epoch, from 0, in which a step is taken; the step before it, and its last one."""
        epoch = bisect.bisect_left(self.epoch_ends, step)
        return epoch, (self.epoch_ends[epoch - 1] if epoch else 0), self.epoch_ends[epoch]


def batches_of(train: Train, lengths: Lengths | None) -> Batches | StreamBatches:
    if lengths is None:
        return StreamBatches.of(train)
    if isinstance(lengths, Planned):
        return lengths.batches(train)
    return Batches(lengths, train.seed, train.batch_size, train.batch_tokens, padded=not train.packing)


def folder_name(step: int) -> str:
    """The folder of a step's checkpoint; names sort by step."""
    return f"step-{step:08d}"


def schedule_of(setting: Use, learning_rate: float) -> Schedule:
    if setting.use == PLATEAU:
        return lambda done, steps: 1.0  # which the evaluations lower, see early_stopping.py
    found = load(setting.use, "training.schedules")
    if isinstance(found, type) and issubclass(found, LRScheduler):
        return TorchSchedule(found, resolved(setting.arguments), learning_rate)
    return make_schedule(found, resolved(setting.arguments))


def make_schedule(found: type[Schedule] | Callable[..., float], arguments: JsonObject) -> Schedule:
    """An instance of a class, or a function with its arguments bound."""
    return found(**arguments) if isinstance(found, type) else partial(found, **arguments)


@dataclass(frozen=True)
class PlannedStep:
    """A step whose batch is loaded, and whose counts are all-reduced while the step before is computed."""

    step: int
    epoch: int
    ids: np.ndarray
    microbatches: MicroBatches
    counted_here: float
    summed: Callable[[], list[float]]  # over all ranks: the count, then what `also_summed` gave
    load_again: Callable[[], MicroBatches]  # in this process, with today's number of microbatches: after running out of memory

    @cached_property
    def denominator(self) -> float:
        """What the losses of all ranks are divided by."""
        return max(1.0, self.summed()[0])


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

    def load(self, ids: np.ndarray, epoch: int) -> MicroBatches:
        return load_batch(self.data, Request(ids, self.share(ids), epoch)).microbatches

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
                load_again = partial(self.load, request.ids, request.epoch)
                yield PlannedStep(request.step, request.epoch, request.ids, microbatches, counted, summed, load_again)

    def _requests(self) -> Iterator[Request]:
        """Worker processes read them ahead."""
        for epoch, batches in self.plan.batches.after(self.state.step, self.plan.last):
            for step, ids in batches:
                yield Request(ids, self.share(ids), epoch, step)
