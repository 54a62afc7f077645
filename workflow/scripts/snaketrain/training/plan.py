"""What happens at which step: a pure function of the settings and the training data, whatever the world size."""

import bisect
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch.optim.lr_scheduler import LRScheduler

from snaketrain.config.references import load
from snaketrain.config.schema import Train, Use
from snaketrain.config.schema.train import PLATEAU
from snaketrain.data.loading.batches import BatchCounts, Batches
from snaketrain.data.loading.streams import StreamBatches
from snaketrain.data.loading.training_data import Lengths
from snaketrain.runtime.credentials import resolved
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.training.torch_schedules import TorchSchedule

Schedule = Callable[[int, int], float]


@dataclass(frozen=True)
class Plan:
    batches: Batches | StreamBatches
    steps: int
    epoch_ends: tuple[int, ...]  # the step that ends each epoch; the last one may lie beyond `steps`
    evaluations_per_epoch: int
    evaluate_every: int | None
    save_every: int | None  # steps; none: at each evaluation, or by time
    save_minutes: float | None
    warmup_steps: int
    learning_rate: float
    schedule: Schedule
    group_schedules: dict[int, Schedule]  # of the groups that have their own, by their number in `train.groups`
    branch_steps: tuple[int, ...] = ()  # at which other trainings leave this one, a trunk; it ends at the last of them

    @classmethod
    def of(cls, train: Train, lengths: Lengths | None, branch_steps: Sequence[int] = (), counts: BatchCounts | None = None) -> "Plan":
        """`lengths`: none of a stream."""
        batches = batches_of(train, lengths, counts)
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
        return cls(
            batches, total, tuple(ends), train.evaluations_per_epoch, train.evaluate_every, train.save_every, train.save_every_minutes, warmup,
            train.learning_rate, schedule, of_groups, tuple(sorted(branch_steps)),
        )  # fmt: skip

    @property
    def last(self) -> int:
        """The last step that is taken."""
        return self.branch_steps[-1] if self.branch_steps else self.steps

    def epoch_of(self, step: int) -> int:
        """The epoch, from 0, in which a step is taken; steps count from 1."""
        return bisect.bisect_left(self.epoch_ends, step)

    def epochs_done(self, step: int) -> float:
        epoch, (first, last) = self.epoch_of(step), self._bounds(step)
        return epoch + (step - first) / (last - first)

    def step_at(self, share: float) -> int:
        """The step at which a share of all steps is done; at least the first."""
        return max(1, round(share * self.steps))

    def evaluates_at(self, step: int) -> bool:
        """At equal intervals within each epoch, or every `evaluate_every` steps; and at the end."""
        if step == self.steps:
            return True
        if self.evaluate_every is not None:
            return step % self.evaluate_every == 0
        (first, last), n = self._bounds(step), self.evaluations_per_epoch
        within, length = step - first, last - first
        return (within * n) // length > ((within - 1) * n) // length

    @property
    def saves_evaluations(self) -> bool:
        """Whether every evaluated step is saved, rather than only the best so far."""
        return self.save_every is None and self.save_minutes is None

    def saves_at(self, step: int) -> bool:
        """Regardless of the metrics and of the time."""
        if step == self.steps or step in self.branch_steps:
            return True
        if self.saves_evaluations:
            return self.evaluates_at(step)
        return self.save_every is not None and step % self.save_every == 0

    def learning_rate_at(self, step: int) -> float:
        """The rate of the update that leads to `step`: a linear warm-up, then the schedule."""
        return self._rate(self.schedule, step)

    def group_rates_at(self, step: int) -> dict[int, float]:
        """The rates of the groups that have a schedule of their own."""
        return {number: self._rate(schedule, step) for number, schedule in self.group_schedules.items()}

    def content(self, step: int, cadence: bool) -> bytes:
        """What a step adds to the fingerprint of a training, to the last bit; `cadence`: also what happens after it."""
        rates = [self.learning_rate_at(step), *(part for group in sorted(self.group_rates_at(step).items()) for part in group)]
        after = [self.evaluates_at(step), self.saves_at(step), step == self.steps] if cadence else []
        return struct.pack(f"<{len(rates)}d{len(after)}?", *rates, *after)

    def _rate(self, schedule: Schedule, step: int) -> float:
        done = step - 1
        if done < self.warmup_steps:
            return self.learning_rate * done / self.warmup_steps
        return self.learning_rate * schedule(done - self.warmup_steps, max(1, self.steps - self.warmup_steps))

    def _bounds(self, step: int) -> tuple[int, int]:
        epoch = self.epoch_of(step)
        return (self.epoch_ends[epoch - 1] if epoch else 0), self.epoch_ends[epoch]


def batches_of(train: Train, lengths: Lengths | None, counts: BatchCounts | None = None) -> Batches | StreamBatches:
    if lengths is None:
        return StreamBatches.of(train)
    return Batches(lengths, train.seed, train.batch_size, train.batch_tokens, padded=not train.packing, counts=counts)


def folder_name(step: int) -> str:
    """The folder of a step's checkpoint; names sort by step."""
    return f"step-{step:08d}"


def schedule_of(setting: Use, learning_rate: float) -> Schedule:
    if setting.use == PLATEAU:
        return lambda done, steps: 1.0  # which the evaluations lower, see plateau.py
    found = load(setting.use, "training.schedules")
    if isinstance(found, type) and issubclass(found, LRScheduler):
        return TorchSchedule(found, resolved(setting.arguments), learning_rate)
    return make_schedule(found, resolved(setting.arguments))


def make_schedule(found: type[Schedule] | Callable[..., float], arguments: JsonObject) -> Schedule:
    """An instance of a class, or a function with its arguments bound."""
    return found(**arguments) if isinstance(found, type) else partial(found, **arguments)
