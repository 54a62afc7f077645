"""Losses and regularisers as sums over examples, and calls of functions with named values."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from snaketrain.config.errors import problems_of
from snaketrain.config.references import load
from snaketrain.config.schema.base import Use
from snaketrain.labels.classes import focal
from snaketrain.models.token_losses import learnt_rows
from snaketrain.runtime.strict_json import Json, JsonObject

Parameters = Mapping[str, inspect.Parameter]
Returned = TypeVar("Returned")


class FocalLoss(nn.Module):
    """Cross entropy times (1 - p) ** gamma, where p is the probability of the right answer: of classes, or of yes and no if targets are floats.

    For the task `module`: `{use: snaketrain.tasks.losses.FocalLoss, arguments: {gamma: 2.0}}`.
    """

    weight: Tensor | None

    def __init__(self, gamma: float = 2.0, weight: Tensor | None = None, reduction: str = "none"):
        super().__init__()
        if reduction != "none":
            raise ValueError(f"the trainer sums over examples: `reduction` {reduction!r} is not supported, so leave it out")
        self.gamma = gamma
        self.register_buffer("weight", weight)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        if target.is_floating_point():
            weighted = binary_cross_entropy_with_logits(logits, target, reduction="none", pos_weight=self.weight)
            return focal(weighted, binary_cross_entropy_with_logits(logits, target, reduction="none"), self.gamma)
        return focal(
            cross_entropy(logits, target, self.weight, reduction="none"), cross_entropy(logits, target, reduction="none"), self.gamma
        )


class Summed:
    """A loss or regulariser as a sum over examples, each the mean over its elements, so that microbatches add up to the batch."""

    def __init__(self, use: str, arguments: JsonObject, where: str):
        found, self.where = load(use), where
        is_class = inspect.isclass(found)
        takes = arguments_of(found)
        if "reduction" in arguments:
            raise SystemExit(
                f"{where}.arguments.reduction: remove it. The trainer sums over examples, to get the mean over the whole batch."
            )
        arguments = {name: tensor_where_wanted(value, takes.get(name)) for name, value in arguments.items()}
        arguments |= {"reduction": "none"} if "reduction" in takes else {}
        self.function: Callable[..., Tensor] = partial(found, **arguments)
        if is_class:
            self.function = found(**arguments)
        self.module = self.function if isinstance(self.function, nn.Module) else None
        if self.module and list(self.module.parameters()):
            raise SystemExit(f"{where}.use: {use} has parameters of its own, which would not be trained. Make them part of the model.")
        self.parameters = arguments_of(self.module.forward if self.module else self.function)

    def __call__(self, values: Mapping[str, Tensor], examples: int, every: bool) -> Tensor:
        if self.module:
            self.module.to(next(iter(values.values())).device)
        found = call(self.function, values, self.parameters, every)
        if found.ndim == 0:  # a mean over the batch
            return found * examples
        if len(found) != examples:
            raise SystemExit(
                f"{self.where}: returns values of shape {list(found.shape)} for {examples} examples. It must return a row for each, or their mean."
            )
        return found.reshape(examples, -1).mean(1).sum()


def named_loss(given: Json) -> Summed:
    """A loss that the configuration names in place of the task's own."""
    where = "train.task.arguments.loss"
    if wrong := problems_of(Use, given, where, "argument"):
        raise SystemExit("\n".join(wrong))
    named = Use.model_validate(given)
    return Summed(named.use, named.arguments, where)


def loss_of_learnt(loss: Summed, logits: Tensor, targets: Tensor) -> Tensor:
    """The sum over the rows of `logits` that have a target."""
    rows, targets = learnt_rows(logits, targets, loss.where)
    return loss(by_position((rows, targets)), len(targets), every=True) if len(targets) else rows.sum()


def by_position(values: Sequence[Tensor]) -> dict[str, Tensor]:
    """Values for `call` that are passed by position: no argument is named by a number."""
    return {str(position): value for position, value in enumerate(values)}


def call(function: Callable[..., Returned], values: Mapping[str, Tensor], parameters: Parameters, every: bool) -> Returned:
    """Pass values by keyword if they have the names of the function's arguments, otherwise by position.

    By keyword, values without an argument are left out, unless `every` value must be passed.
    """
    kinds = inspect.Parameter
    accepted = {name: each for name, each in parameters.items() if each.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)}
    needed = {name for name, each in accepted.items() if each.default is kinds.empty}
    takes_any = any(each.kind is kinds.VAR_KEYWORD for each in parameters.values())
    known = {name: value for name, value in values.items() if name in accepted or (takes_any and not name.isdigit())}
    by_keyword = known and needed <= known.keys() and not (every and len(known) < len(values))
    return function(**known) if by_keyword else function(*values.values())


def arguments_of(function: Callable[..., object]) -> Parameters:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # not written in Python
        return {}


def beside(prediction: Tensor, target: Tensor | None) -> list[Tensor]:
    """Prediction and target, floats in the same shape: shapes (n, 1) and (n,) would silently be broadcast to (n, n)."""
    if target is None:
        return [prediction]
    if target.is_floating_point() and prediction.is_floating_point() and target.numel() == prediction.numel():
        target = target.reshape(prediction.shape)
    return [prediction, target]


def tensor_where_wanted(value: Json, parameter: inspect.Parameter | None) -> Json | Tensor:
    """Converts lists of numbers for arguments that are annotated as tensors, such as class weights."""
    wanted = parameter is not None and "Tensor" in str(parameter.annotation)
    return torch.tensor(value, dtype=torch.get_default_dtype()) if wanted and isinstance(value, list) else value


# --- Constant answers, the same for every example, as baselines of the task `module`.

OF_CLASSES = ("CrossEntropyLoss", "cross_entropy", "NLLLoss", "nll_loss")
OF_LOGITS = ("BCEWithLogitsLoss", "binary_cross_entropy_with_logits")
OF_VALUES = (
    *("MSELoss", "mse_loss", "L1Loss", "l1_loss", "SmoothL1Loss", "smooth_l1_loss", "HuberLoss", "huber_loss"),
    *("BCELoss", "binary_cross_entropy"),
)
SMALLEST = 1e-7  # smallest share: classes that never occur get a finite logit


def constant_answer(loss: str, prediction: Tensor, target: Tensor | None) -> tuple[Tensor, str] | None:
    """The best constant prediction for a loss, and its description; None if it is unknown how the loss interprets predictions."""
    name, of_torch = loss.rpartition(".")[2], loss.startswith("torch.")
    if target is None:
        return None
    if of_torch and name in OF_CLASSES and not target.is_floating_point() and prediction.ndim == target.ndim + 1:
        counts = torch.bincount(target[target >= 0].flatten(), minlength=prediction.shape[1])  # the loss ignores targets below 0
        logits = (counts / counts.sum()).clamp(min=SMALLEST).log()
        logits = logits.reshape(1, -1, *[1] * (prediction.ndim - 2))
        return logits.expand_as(prediction), f"always class {counts.argmax()}, with the classes' frequencies as probabilities"
    if not (target.is_floating_point() and target.numel() == prediction.numel()) or (of_torch and name not in OF_LOGITS + OF_VALUES):
        return None
    mean = target.reshape(prediction.shape).mean(0)
    words = f"always {f'{mean.item():.4g}, ' if mean.numel() == 1 else ''}the mean of the targets"
    return (mean.logit(SMALLEST) if of_torch and name in OF_LOGITS else mean).expand_as(prediction), words
