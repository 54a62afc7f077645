"""Schedulers of torch as functions of the step: what they compute is written down, so that a resume needs no state of theirs.

Each is stepped once per update. ReduceLROnPlateau, which depends on the evaluations, is in `plateau.py`.
"""

import inspect

import torch
from torch.optim.lr_scheduler import LRScheduler

from snaketrain.config.schema.train import SET_BY_LENGTH
from snaketrain.runtime.strict_json import JsonObject


class TorchSchedule:
    """The rate of a scheduler as a fraction of the learning rate. Warm-up steps come before it and do not count."""

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
