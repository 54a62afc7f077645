"""Metrics by class: sums over the examples of a batch, and the metric from the sums over all examples.

Metrics of torchmetrics that add up in the same way can be used: `MulticlassAccuracy`, `MeanSquaredError`, `JaccardIndex` and many more.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from snaketrain.config.references import load
from snaketrain.runtime.json_types import JsonObject

if TYPE_CHECKING:
    from torchmetrics import Metric

Sums = dict[str, Tensor]


class Sum:
    """The base class of custom metrics: derive from it and name the class as `{use: my_file.py:MyMetric}`."""

    higher_is_better: bool | None = None  # as in torchmetrics; `select` ranks checkpoints by it

    def sums(self, prediction: Tensor, target: Tensor) -> Sums:
        """Sums over a batch by name: tensors of any shape, which are added over all batches and processes in double precision."""
        raise NotImplementedError(f"{type(self).__name__} must define what it adds up: override `sums`")

    def compute(self, sums: Sums) -> float:
        """The metric from the sums over all examples."""
        raise NotImplementedError(f"{type(self).__name__} must define the metric from its sums: override `compute`")


class Mean(Sum):
    """The mean of a function that returns one value for each example."""

    def __init__(self, name: str, function: Callable[..., Tensor]):
        self.name, self.function = name, function

    def sums(self, *values: Tensor) -> Sums:
        found = self.function(*values)
        if found.shape != values[0].shape[:1]:
            raise SystemExit(
                f"train.task.arguments.metrics.{self.name}: the function returns values of shape {list(found.shape)} for "
                f"{len(values[0])} examples. It must return one for each, or use a class derived from snaketrain.tasks.metrics.Sum."
            )
        return {"total": found.sum(), "count": torch.tensor(len(found))}

    def compute(self, sums: Sums) -> float:
        return float(sums["total"] / sums["count"])


class OfTorchmetrics(Sum):
    """A metric of torchmetrics whose state consists of sums; its own synchronisation is switched off."""

    def __init__(self, name: str, metric: "Metric"):
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
                "If it takes `thresholds`, set their number; otherwise use another metric, or a class derived from snaketrain.tasks.metrics.Sum."
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
        self.metric._update_count = 1  # otherwise it would warn that it was not updated
        found = self.metric.compute()
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise SystemExit(
                f"train.task.arguments.metrics.{self.name}: {type(self.metric).__name__} returns several values: "
                "reduce them to one, such as by `average: macro` in its arguments."
            )
        return float(found)


def make_metric(name: str, use: str, arguments: JsonObject) -> Sum:
    found = load(use)
    if inspect.isfunction(found):
        return Mean(name, partial(found, **arguments))
    made = found(**arguments)
    if any(each.__module__.startswith("torchmetrics") for each in type(made).__mro__):
        return OfTorchmetrics(name, made)
    if not (hasattr(made, "sums") and hasattr(made, "compute")):
        raise SystemExit(
            f"train.task.arguments.metrics.{name}: {use} is neither a torchmetrics class nor derived from snaketrain.tasks.metrics.Sum "
            "nor a function. Use one of these."
        )
    metric: Sum = made
    return metric
