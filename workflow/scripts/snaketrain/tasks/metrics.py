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
    """A metric of one's own: derive from this and name it as `{use: my_file.py:MyMetric}`."""

    higher_is_better: bool | None = None  # as in torchmetrics; tells `select` which checkpoint is best

    def sums(self, prediction: Tensor, target: Tensor) -> Sums:
        """Of a batch, by name: tensors of any shape, which are added up over all batches and processes in double precision."""
        raise NotImplementedError(f"{type(self).__name__} must say what it adds up: override `sums`")

    def compute(self, sums: Sums) -> float:
        """From the sums over all examples."""
        raise NotImplementedError(f"{type(self).__name__} must say what follows from its sums: override `compute`")


class Mean(Sum):
    """The mean of a function that gives one value for each example."""

    def __init__(self, name: str, function: Callable[..., Tensor]):
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


def make_metric(name: str, use: str, arguments: JsonObject) -> Sum:
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
    metric: Sum = made
    return metric
