"""Metrics by class: sums over the examples of a batch, and the figure from the sums over all examples.

Of torchmetrics it takes what adds up in the same way: `MulticlassAccuracy`, `MeanSquaredError`, `JaccardIndex` and many more.
"""

import inspect
from functools import partial
from typing import Any

import torch
from torch import Tensor

from snaketrain.config.references import load

Sums = dict[str, Tensor]


class Sum:
    """A metric of one's own: derive from this and name it as `{use: my_file.py:MyMetric}`."""

    higher_is_better: bool | None = None  # as in torchmetrics; by it `select` knows which checkpoint is best

    def sums(self, prediction: Tensor, target: Tensor) -> Sums:
        """Of a batch, by name; tensors of any shape, added up over all batches and processes in double precision."""
        raise NotImplementedError(f"{type(self).__name__} must say what is added up: override `sums`")

    def compute(self, sums: Sums) -> float:
        """From the sums over all examples."""
        raise NotImplementedError(f"{type(self).__name__} must say what comes of its sums: override `compute`")


class Mean(Sum):
    """A function that gives one value for each example: their mean."""

    def __init__(self, name: str, function: Any):
        self.name, self.function = name, function

    def sums(self, *values: Tensor) -> Sums:
        found = self.function(*values)
        if found.shape != values[0].shape[:1]:
            raise SystemExit(
                f"train.task.arguments.metrics.{self.name}: the function gives values of shape {list(found.shape)} for "
                f"{len(values[0])} examples. Let it give one for each, or use a class derived from snaketrain.tasks.metrics.Sum."
            )
        return {"total": found.sum(), "count": torch.tensor(len(found))}

    def compute(self, sums: Sums) -> float:
        return float(sums["total"] / sums["count"])


class OfTorchmetrics(Sum):
    """A metric of torchmetrics whose state is made of sums; its own exchange between processes is left out."""

    def __init__(self, name: str, metric: Any):
        self.name, self.metric, self.states = name, metric, list(metric._defaults)
        self.higher_is_better = metric.higher_is_better
        kept = [state for state, start in metric._defaults.items() if isinstance(start, list) or metric._reductions[state] is None]
        other = [
            state for state in self.states if state not in kept and getattr(metric._reductions[state], "__name__", "") != "dim_zero_sum"
        ]
        if kept or other or not self.states:
            why = (
                f"keeps `{kept[0]}` of every batch" if kept else f"does not add up its `{other[0]}`" if other else "has no state of its own"
            )
            raise SystemExit(
                f"train.task.arguments.metrics.{name}: {type(metric).__name__} {why}, but only sums can be added over batches and processes. "
                "Where it takes `thresholds`, give a number of them; else use another metric, or a class derived from snaketrain.tasks.metrics.Sum."
            )
        metric.sync_on_compute = metric._to_sync = False

    def sums(self, *values: Tensor) -> Sums:
        metric = self.metric.to(values[0].device)
        metric.reset()
        metric.update(*values)
        return {state: getattr(metric, state) for state in self.states}

    def compute(self, sums: Sums) -> float:
        self.metric.reset()
        for state in self.states:
            kind = getattr(self.metric, state).dtype
            setattr(self.metric, state, sums[state] if kind.is_floating_point else sums[state].round().to(kind))
        self.metric._update_count = 1  # or it would warn that it has seen nothing
        found = self.metric.compute()
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise SystemExit(
                f"train.task.arguments.metrics.{self.name}: {type(self.metric).__name__} gives several values: "
                "let it give one, such as by `average: macro` in its arguments."
            )
        return float(found)


def make_metric(name: str, use: str, arguments: dict[str, Any]) -> Sum:
    found = load(use)
    if inspect.isfunction(found):
        return Mean(name, partial(found, **arguments))
    made = found(**arguments)
    if any(each.__module__.startswith("torchmetrics") for each in type(made).__mro__):
        return OfTorchmetrics(name, made)
    if not (hasattr(made, "sums") and hasattr(made, "compute")):
        raise SystemExit(
            f"train.task.arguments.metrics.{name}: {use} is neither of torchmetrics nor derived from snaketrain.tasks.metrics.Sum, "
            "and no function. Use one of these."
        )
    return made
