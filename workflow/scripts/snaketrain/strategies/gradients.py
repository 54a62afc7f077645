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
from snaketrain.tasks.base import Batch, Modules, Returned, on_device

if TYPE_CHECKING:
    from snaketrain.strategies.base import Strategy

MicroBatches: TypeAlias = Sequence[tuple[MicroBatch, Batch]]
LossSums: TypeAlias = dict[str, Tensor]  # by part of the loss; and sums of figures, whose names begin as follows
FIGURE, FIGURE_COUNT = "figure:", "count of figure:"
OF_TRAINER = ("loss", "learning_rate", "gradient_norm", "epoch")  # figures that each training logs


@dataclass(frozen=True)
class Objective:
    """A loss, the modules that it is computed with, and the names of those that learn from it."""

    loss: Callable[[Modules, Batch], Returned]
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
                returned = objective.loss(modules, on_device(batch, strategy.device))
            parts, figures = losses_and_figures(returned)
            loss = total(parts)
            strategy.backward(loss, nan_if_infinite(0.0 if microbatch.filler else 1.0 / denominator, loss))
        add_up(sums, {name: torch.zeros_like(each) if microbatch.filler else each.detach() for name, each in (parts | figures).items()})
    return sums


def losses_and_figures(returned: Returned) -> tuple[LossSums, LossSums]:
    """The losses by part, and the sums of figures that are only logged. Exits with a message if a value is neither."""
    losses, figures = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
    parts = losses if isinstance(losses, dict) else {"": losses}
    for name, loss in parts.items():
        check_loss(name, loss, len(parts))
    if not isinstance(figures, dict):
        raise SystemExit(
            f"train.task.use: beside the loss, `training_step` returns a {type(figures).__name__}. Return figures by name: {HOW}."
        )
    return parts, {key: value for name, figure in figures.items() for key, value in figure_sums(name, figure).items()}


HOW = "`return loss, {'name': sum}`, or `(sum, count)` for a figure with a count of its own"


def check_loss(name: str, loss: object, parts: int) -> None:
    """A figure among the losses would be added to the loss, and be reported with it."""
    where = f"`training_step` returns '{name}' among its losses" if name else "`training_step` returns its loss"
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise SystemExit(f"train.task.use: {where}, as {shape}. Return each loss as a sum, a tensor of one value.")
    if parts > 1 and name == "loss":
        raise SystemExit(
            f"train.task.use: {where}, which are added up. Return the whole loss alone, and what is only logged beside it: {HOW}."
        )
    if parts > 1 and not loss.requires_grad and loss.item() != 0:  # zero where a batch has nothing of it
        raise SystemExit(
            f"train.task.use: {where}, but nothing can be learnt from it, since it has no gradient. Return figures beside the losses: {HOW}."
        )


def figure_sums(name: str, figure: object) -> LossSums:
    if name in OF_TRAINER or name.startswith("loss_") or name.endswith("_per_second"):
        raise SystemExit(
            f"train.task.use: `training_step` returns a figure '{name}', but each training logs one of this name. Name it otherwise."
        )
    several = figure if isinstance(figure, tuple) else (figure,)
    if len(several) > 2 or not all(isinstance(each, Tensor) and each.numel() == 1 for each in several):
        raise SystemExit(f"train.task.use: `training_step` returns a figure '{name}' that is no sum, a tensor of one value. Return {HOW}.")
    values = [each.detach().reshape(()).float() for each in several]
    return dict(zip((f"{FIGURE}{name}", f"{FIGURE_COUNT}{name}"), values, strict=False))


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
