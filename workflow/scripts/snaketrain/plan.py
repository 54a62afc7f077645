"""What happens at which step: a pure function of the settings and the number of examples, on any number of processes."""

from collections.abc import Callable
from dataclasses import dataclass

from snaketrain.data.batches import steps_per_epoch


@dataclass(frozen=True)
class Plan:
    steps: int
    per_epoch: int
    evaluations_per_epoch: int
    warmup_steps: int
    learning_rate: float
    schedule: Callable[[float], float]

    @classmethod
    def of(cls, train, examples: int, schedule: Callable[[float], float]) -> "Plan":
        per_epoch = steps_per_epoch(examples, train.batch_size)
        total = max(1, round(per_epoch * train.epochs))
        return cls(total, per_epoch, train.evaluations_per_epoch, round(total * train.warmup), train.learning_rate, schedule)

    def evaluates_at(self, step: int) -> bool:
        """At equal distances within each epoch, and at the very end."""
        within, n = (step - 1) % self.per_epoch + 1, self.evaluations_per_epoch
        return step == self.steps or (within * n) // self.per_epoch > ((within - 1) * n) // self.per_epoch

    def learning_rate_at(self, step: int) -> float:
        """Of the update that leads to `step`: a linear rise, then the schedule."""
        done = step - 1
        if done < self.warmup_steps:
            return self.learning_rate * done / self.warmup_steps
        return self.learning_rate * self.schedule((done - self.warmup_steps) / max(1, self.steps - self.warmup_steps))
