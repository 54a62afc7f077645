"""Losses and gradients of one objective on this rank's microbatches, the same in every strategy but a pipeline."""

import contextlib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from snaketrain.data.loading.batches import MicroBatch
from snaketrain.strategies.optimizer_state import local_optimizer
from snaketrain.tasks.base import Batch, Losses, Modules, on_device

if TYPE_CHECKING:
    from snaketrain.strategies.base import Strategy

MicroBatches: TypeAlias = Sequence[tuple[MicroBatch, Batch]]
LossSums: TypeAlias = dict[str, Tensor]  # by part of the loss


@dataclass(frozen=True)
class Objective:
    """A loss, the modules that it is computed with, and the names of those that learn from it."""

    loss: Callable[[Modules, Batch], Losses]
    modules: Modules
    learning: Sequence[str]


def forward_backward(strategy: "Strategy", objective: Objective, microbatches: MicroBatches, denominator: float) -> LossSums:
    """Leave the gradients of loss / denominator in the modules that learn; return the losses, summed over the microbatches."""
    sums: LossSums = {}
    modules, learning = objective.modules, [objective.modules[name] for name in objective.learning]
    for number, (microbatch, batch) in enumerate(microbatches, start=1):
        with contextlib.ExitStack() as stack:
            for module in learning:
                stack.enter_context(strategy.accumulating(module, number < len(microbatches)))
            with strategy.autocast():
                losses = objective.loss(modules, on_device(batch, strategy.device))
            parts = parts_of(losses)
            loss = total(parts)
            strategy.backward(loss, nan_if_infinite(0.0 if microbatch.filler else 1.0 / denominator, loss))
        add_up(sums, {part: torch.zeros_like(loss) if microbatch.filler else loss.detach() for part, loss in parts.items()})
    return sums


def parts_of(losses: Losses) -> LossSums:
    return losses if isinstance(losses, dict) else {"": losses}


def total(parts: LossSums) -> Tensor:
    return reduce(operator.add, parts.values())  # `sum` starts from 0: one more operation, forward and backward


def add_up(sums: LossSums, more: Mapping[str, Tensor]) -> None:
    for part, loss in more.items():
        sums[part] = sums[part] + loss if part in sums else loss


def nan_if_infinite(weight: float, loss: Tensor) -> Tensor:
    """The weight, or NaN where the loss is not finite: an infinite loss may have finite gradients, and would go unnoticed."""
    return loss.detach() * 0.0 + weight


def step_if_finite(optimizer: torch.optim.Optimizer, norm: Tensor) -> None:
    """Step, unless the norm of the gradients is not finite. On a GPU a fused optimizer finds that out without the host waiting for it."""
    stepping = local_optimizer(optimizer)
    if norm.device.type != "cpu" and all(group.get("fused") for group in stepping.param_groups):
        step_on_device(optimizer, stepping, norm)
    elif math.isfinite(norm.item()):
        optimizer.step()


def step_on_device(optimizer: torch.optim.Optimizer, stepping: torch.optim.Optimizer, norm: Tensor) -> None:
    """Fused kernels leave weights, moments and step count as they are where `found_inf` is 1."""
    found_inf = (norm * 0).ne(0).float()  # NaN and infinity times 0 are NaN
    stepping.grad_scale, stepping.found_inf = None, found_inf  # type: ignore[attr-defined]  # fused optimizers read them
    optimizer.step()


def norm_of(norms: list[Tensor]) -> Tensor:
    """The norm of several parts, from the norm of each."""
    return norms[0].reshape(()) if len(norms) == 1 else torch.stack(norms).norm()
