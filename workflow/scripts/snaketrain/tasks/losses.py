"""Losses and regularisers by name, as sums over examples, and how functions are called with named values."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from snaketrain.config.references import load

Parameters = Mapping[str, inspect.Parameter]


class Summed:
    """A loss or regulariser as a sum over examples, each of which counts as the mean over its own elements: so it adds up in any way."""

    def __init__(self, use: str, arguments: dict[str, Any], where: str):
        found, self.where = load(use), where
        takes = arguments_of(found)
        if "reduction" in arguments:
            raise SystemExit(f"{where}.arguments.reduction: remove it. The trainer adds up by example, so that the whole batch decides.")
        arguments = {name: tensor_where_wanted(value, takes.get(name)) for name, value in arguments.items()}
        arguments |= {"reduction": "none"} if "reduction" in takes else {}
        self.function = found(**arguments) if inspect.isclass(found) else partial(found, **arguments)
        self.is_module = isinstance(self.function, nn.Module)
        if self.is_module and list(self.function.parameters()):
            raise SystemExit(f"{where}.use: {use} has parameters of its own, which nobody would train. Make them part of the model.")
        self.parameters = arguments_of(self.function.forward if self.is_module else self.function)

    def __call__(self, values: dict[Any, Tensor], examples: int, every: bool) -> Tensor:
        if self.is_module:
            self.function.to(next(iter(values.values())).device)
        found = call(self.function, values, self.parameters, every)
        if found.ndim == 0:  # a mean over the batch
            return found * examples
        if len(found) != examples:
            raise SystemExit(
                f"{self.where}: gives values of shape {list(found.shape)} for {examples} examples. Let it give a row for each, or their mean."
            )
        return found.reshape(examples, -1).mean(1).sum()


def call(function: Callable, values: dict[Any, Tensor], parameters: Parameters, every: bool) -> Any:
    """By keyword where the names of the values are those of its arguments, else by position.

    By keyword, values that it has no argument for are left out, unless `every` one is meant.
    """
    kinds = inspect.Parameter
    accepted = {name: each for name, each in parameters.items() if each.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)}
    needed = {name for name, each in accepted.items() if each.default is kinds.empty}
    takes_any = any(each.kind is kinds.VAR_KEYWORD for each in parameters.values())
    known = {name: value for name, value in values.items() if name in accepted or (takes_any and isinstance(name, str))}
    by_keyword = known and needed <= known.keys() and not (every and len(known) < len(values))
    return function(**known) if by_keyword else function(*values.values())


def arguments_of(function: Callable) -> Parameters:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # one that is not written in Python
        return {}


def beside(prediction: Tensor, target: Tensor | None) -> list[Tensor]:
    """Both, numbers in the same shape: rows of one number beside plain numbers would silently be compared each with each."""
    if target is None:
        return [prediction]
    if target.is_floating_point() and prediction.is_floating_point() and target.numel() == prediction.numel():
        target = target.reshape(prediction.shape)
    return [prediction, target]


def tensor_where_wanted(value: Any, parameter: inspect.Parameter | None) -> Any:
    """Lists of numbers for arguments that are tensors, such as the weights of classes."""
    wanted = parameter is not None and "Tensor" in str(parameter.annotation)
    return torch.tensor(value, dtype=torch.get_default_dtype()) if wanted and isinstance(value, list) else value
