"""Losses and gradients of one objective on this rank's microbatches, the same in every strategy but a pipeline."""

import contextlib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from snaketrain.data.loading.batches import MicroBatch
from snaketrain.data.loading.training_data import Batch
from snaketrain.tasks.base import Modules, Returned, on_device

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
            strategy.backward(*weighted_loss(returned, microbatch, denominator, sums))
    return sums


def weighted_loss(returned: Returned, microbatch: MicroBatch, denominator: float, sums: LossSums) -> tuple[Tensor, Tensor]:
    """What to learn from, and its weight. The losses by part, and figures, are added to the sums."""
    parts, figures = losses_and_figures(returned)
    loss = reduce(operator.add, parts.values())  # `sum` starts from 0: one more operation, forward and backward
    add_up(sums, {name: torch.zeros_like(each) if microbatch.filler else each.detach() for name, each in (parts | figures).items()})
    # NaN where the loss is not finite: an infinite loss may have finite gradients, and would go unnoticed
    return loss, loss.detach() * 0.0 + (0.0 if microbatch.filler else 1.0 / denominator)


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


def add_up(sums: LossSums, more: Mapping[str, Tensor]) -> None:
    for part, loss in more.items():
        sums[part] = sums[part] + loss if part in sums else loss
