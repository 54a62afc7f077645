"""Metrics by class. Most are computed from sums over examples; some, such as AUROC and Spearman's correlation, need the rows of all examples.

Both are the same on any number of processes: sums are added, and rows are gathered, each example once and in order.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from snaketrain.config.references import load
from snaketrain.config.schema import Metric as Setting
from snaketrain.labels import label_kinds
from snaketrain.runtime.credentials import resolved
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.metric_names import MODES, Modes, declared_mode, is_short, known_metric

if TYPE_CHECKING:
    from torchmetrics import Metric as Torchmetric

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


class OfRows:
    """The base class of custom metrics that are no sums: derived classes get the predictions and targets of all examples at once."""

    higher_is_better: bool | None = None

    def compute(self, *values: Tensor) -> float:
        """The metric from the prediction and the target, on the CPU, with a row for each example."""
        raise NotImplementedError(f"{type(self).__name__} must define the metric from all rows: override `compute`")


Metric: TypeAlias = Sum | OfRows


class Mean(Sum):
    """The mean of a function that returns one value for each example."""

    def __init__(self, where: str, function: Callable[..., Tensor]):
        self.where, self.function = where, function

    def sums(self, *values: Tensor) -> Sums:
        found = self.function(*values)
        if found.shape != values[0].shape[:1]:
            raise SystemExit(
                f"{self.where}: the function returns values of shape {list(found.shape)} for {len(values[0])} examples. It must return one for "
                "each, or use a class derived from snaketrain.tasks.metrics.Sum, or from OfRows if it needs all examples at once."
            )
        return {"total": found.sum(), "count": torch.tensor(len(found))}

    def compute(self, sums: Sums) -> float:
        return float(sums["total"] / sums["count"])


class SumsOfTorchmetrics(Sum):
    """A metric of torchmetrics whose state consists of sums; its own synchronisation is switched off."""

    def __init__(self, where: str, metric: "Torchmetric"):
        self.where, self.metric, self.states = where, metric, list(metric._defaults)
        self.higher_is_better = metric.higher_is_better

    def sums(self, *values: Tensor) -> Sums:
        metric = self.metric.to(values[0].device)
        metric.reset()
        if len(values[0]):  # a batch of texts of one token has none to predict
            metric.update(*for_class(metric, values, self.where))
        return {state: getattr(metric, state) for state in self.states}

    def compute(self, sums: Sums) -> float:
        self.metric.reset()
        for state in self.states:
            kind = getattr(self.metric, state).dtype
            setattr(self.metric, state, sums[state] if kind.is_floating_point else sums[state].round().to(kind))
        self.metric._update_count = 1  # otherwise it would warn that it was not updated
        return single(self.metric.compute(), self.metric, self.where)


class RowsOfTorchmetrics(OfRows):
    """A metric of torchmetrics that keeps every prediction, or cannot be added up: it is updated once, with all rows."""

    def __init__(self, where: str, metric: "Torchmetric"):
        self.where, self.metric = where, metric
        self.higher_is_better = metric.higher_is_better

    def compute(self, *values: Tensor) -> float:
        metric = self.metric.to("cpu")
        metric.reset()
        metric.update(*for_class(metric, values, self.where))
        return single(metric.compute(), metric, self.where)


def single(found: object, metric: object, where: str) -> float:
    if not isinstance(found, Tensor) or found.numel() != 1:
        raise SystemExit(
            f"{where}: {type(metric).__name__} returns several values: reduce them to one, such as by `average: macro` in its arguments."
        )
    return float(found)


def for_class(metric: object, values: tuple[Tensor, ...], where: str) -> tuple[Tensor, ...]:
    """Metrics of two classes take the probability of the second one, where there is a probability of each."""
    prediction, *others = values
    if not type(metric).__name__.startswith("Binary") or not others or prediction.ndim != 2 or others[0].ndim != 1:
        return values
    if prediction.shape[1] > 2:
        raise SystemExit(
            f"{where}: {type(metric).__name__} is for two classes, and there are {prediction.shape[1]}. Name a metric of several classes."
        )
    return (prediction[:, -1], *others)


def adds_up(metric: "Torchmetric") -> bool:
    """Whether the state consists of sums, so that it is the same however the examples are split."""
    return bool(metric._defaults) and all(
        isinstance(start, Tensor) and getattr(metric._reductions[state], "__name__", "") == "dim_zero_sum"
        for state, start in metric._defaults.items()
    )


def make_metric(where: str, use: str, arguments: JsonObject, classes: int | None = None) -> Metric:
    """`classes`: their number in the data, for metrics that take it and were not given it."""
    found = load(use)
    if inspect.isfunction(found):
        return Mean(where, partial(found, **arguments))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*will save all targets and predictions in the buffer")  # it is updated once
            made = found(**completed(found, arguments, classes))
    except (TypeError, ValueError) as error:
        raise SystemExit(f"{where}: {use} cannot be made with the arguments {arguments}: {error}. Correct them.") from error
    if any(each.__module__.startswith("torchmetrics") for each in type(made).__mro__):
        made.sync_on_compute = made._to_sync = False
        return SumsOfTorchmetrics(where, made) if adds_up(made) else RowsOfTorchmetrics(where, made)
    if not callable(getattr(made, "compute", None)):
        raise SystemExit(
            f"{where}: {use} is neither a torchmetrics class nor derived from snaketrain.tasks.metrics.Sum or OfRows nor a function. "
            "Use one of these."
        )
    metric: Metric = made
    return metric


def completed(found: Callable[..., object], arguments: JsonObject, classes: int | None) -> JsonObject:
    """With the number of classes where it is missing, and with floats where torchmetrics insists on them: `beta: 2`."""
    takes = inspect.signature(found).parameters
    wanted = [name for name in ("num_classes", "num_labels") if classes and name in takes and name not in arguments]
    floats = {name for name, each in takes.items() if each.annotation is float}
    given = {name: float(value) if name in floats and type(value) is int else value for name, value in arguments.items()}
    return given | dict.fromkeys(wanted, classes)


def metrics_of_settings(given: Mapping[str, Setting], facts: JsonObject, where: str) -> tuple[dict[str, Metric], Modes]:
    """The metrics that a section names, and whether higher or lower is better; `facts` are those of the data."""
    measured: dict[str, Metric] = {}
    modes: Modes = {}
    classes = len(facts.get("label_names") or ()) or None
    for name, setting in given.items():
        place, use, arguments, mode = f"{where}.{name}", setting.use, resolved(setting.arguments), None
        if is_short(use):
            known = known_metric(use, problem_type_of(facts), place)
            use, mode, arguments = known.use_for(classes, arguments, place), known.mode, {**known.arguments, **arguments}
        measured[name] = metric = make_metric(place, use, arguments, classes)
        modes[name] = declared_mode(place, mode or MODES.get(getattr(metric, "higher_is_better", None)), setting.mode)
    return measured, modes


def problem_type_of(facts: JsonObject) -> str:
    kind = label_kinds().get(facts.get("label_kind", ""))
    return kind.head.problem_type if kind else ""
