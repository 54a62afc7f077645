"""The gradients of one of a task's objectives, on this process's pieces of a batch."""

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from snaketrain.data.loading.batches import MicroBatch
from snaketrain.tasks.base import Batch, on_device
from snaketrain.training.bad_steps import poisoned
from snaketrain.training.learner import Learner
from snaketrain.training.window import each

Cut = list[tuple[MicroBatch, Batch]]  # a process's pieces of a batch
Losses = dict[str, Tensor]  # by part
Objective = tuple[Callable[..., Any], list[str]]  # a loss, and the modules that learn from it


def gradients_of(learner: Learner, objective: Objective, batches: Cut, count: float) -> Losses:
    """They are left in the modules that learn; the losses, summed over the pieces."""
    strategy, losses = learner.strategy, {}
    loss_of, names = objective
    modules = learner.learning(names)
    for number, (piece, batch) in enumerate(batches, start=1):
        with each(strategy.accumulating(modules[name], number < len(batches)) for name in names):
            with strategy.autocast():
                parts = loss_of(modules, on_device(batch, strategy.device))
            parts = parts if isinstance(parts, dict) else {"": parts}
            loss = reduce(operator.add, parts.values())  # `sum` would begin with 0, one more operation forwards and backwards
            strategy.backward(loss, poisoned(0.0 if piece.filler else 1.0 / count, loss))
        add_up(losses, {part: torch.zeros_like(loss) if piece.filler else loss.detach() for part, loss in parts.items()})
    return losses


def add_up(losses: Losses, more: Losses) -> None:
    for part, loss in more.items():
        losses[part] = losses[part] + loss if part in losses else loss


def clear(learner: Learner) -> None:
    for name, module in learner.modules.items():
        learner.strategy.clear(module, learner.optimizers[name])


def seed_step(seed: int, step: int, objective: int, strategy: Any) -> None:
    """Dropout depends on the step and the objective alone: whoever resumes, or tries again, draws what would have been drawn."""
    number = (seed * 1_000_003 + step) * 1_009 + strategy.data_parallel_rank + objective * 1_000_000_007
    torch.default_generator.manual_seed(number)  # `torch.manual_seed` takes half a millisecond for devices that are not used
    if strategy.device.type == "cuda":
        torch.cuda.manual_seed(number)
