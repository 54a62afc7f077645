"""Metrics of classes as scikit-learn defines them, where those of torchmetrics differ: most often where a class does not occur."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import (
    BinaryAUROC,
    MulticlassAUROC,
    MulticlassAveragePrecision,
    MulticlassConfusionMatrix,
    MulticlassMatthewsCorrCoef,
    MultilabelAUROC,
    MultilabelMatthewsCorrCoef,
)
from torchmetrics.utilities.data import dim_zero_cat

from snaketrain.tasks.metrics import Sum, Sums


class MulticlassMatthews(MulticlassMatthewsCorrCoef):
    def compute(self) -> Tensor:
        return correlation(self.confmat)


class MultilabelMatthews(MultilabelMatthewsCorrCoef):
    """Of all labels together."""

    def compute(self) -> Tensor:
        return correlation(self.confmat.sum(0))


def correlation(confusion: Tensor) -> Tensor:
    """0 where all answers or all labels are the same."""
    found = confusion.double()
    labels, answers, examples = found.sum(1), found.sum(0), found.sum()
    covariance = found.trace() * examples - labels @ answers
    variances = (examples**2 - answers @ answers) * (examples**2 - labels @ labels)
    return covariance / variances.sqrt() if variances > 0 else torch.zeros_like(variances)


class BalancedAccuracy(MulticlassConfusionMatrix):
    """The mean recall of the classes that have examples: one that is only predicted has no recall."""

    higher_is_better = True

    def compute(self) -> Tensor:
        examples = self.confmat.sum(1)
        recalls = self.confmat.diag().double() / examples
        return recalls[examples > 0].mean()


class TopKAccuracy(Sum):
    """Whether the right class is among the `top_k` most probable ones; of equal probabilities that of the later class counts as higher."""

    higher_is_better = True

    def __init__(self, num_classes: int, top_k: int = 5):
        if not 1 <= top_k <= num_classes:
            raise ValueError(f"top_k is {top_k}, but there are {num_classes} classes")
        self.top_k = top_k

    def sums(self, prediction: Tensor, target: Tensor) -> Sums:
        own, number = prediction.gather(1, target[:, None]), torch.arange(prediction.shape[1], device=prediction.device)
        ahead = (prediction > own) | ((prediction == own) & (number > target[:, None]))
        return {"right": (ahead.sum(1) < self.top_k).sum(), "count": torch.tensor(len(target))}

    def compute(self, sums: Sums) -> float:
        return float(sums["right"] / sums["count"])


# Areas under curves. Where some classes have no area, since they have no examples or all, it is the mean of the others


class BinaryAuroc(BinaryAUROC):
    def compute(self) -> Tensor:  # type: ignore[override]  # as in torchmetrics
        positives, negatives = binary_counts(self)
        return super().compute() if positives * negatives > 0 else torch.tensor(math.nan)


class MultilabelAuroc(MultilabelAUROC):
    def compute(self) -> Tensor:  # type: ignore[override]  # as in torchmetrics
        positives, negatives = binary_counts(self)
        if self.average == "micro":
            return super().compute() if positives.sum() * negatives.sum() > 0 else torch.tensor(math.nan)
        return averaged(self, super().compute, positives, positives * negatives > 0)


class MulticlassAuroc(MulticlassAUROC):
    def compute(self) -> Tensor:  # type: ignore[override]  # as in torchmetrics
        examples = class_counts(self, self.num_classes)
        return averaged(self, super().compute, examples, (examples > 0) & (examples < examples.sum()))


class AveragePrecisionOfClasses(MulticlassAveragePrecision):
    def compute(self) -> Tensor:  # type: ignore[override]  # as in torchmetrics
        examples = class_counts(self, self.num_classes)
        return averaged(self, super().compute, examples, examples > 0)


def binary_counts(metric: BinaryAUROC | MultilabelAUROC) -> tuple[Tensor, Tensor]:
    """Examples that have the label, and those that lack it: one number, or one for each label."""
    if metric.thresholds is not None:
        lacking, having = metric.confmat[0].sum(-1).unbind(-1)
        return having, lacking
    target = dim_zero_cat(metric.target)
    return (target == 1).sum(0), (target == 0).sum(0)


def class_counts(metric: MulticlassAUROC | MulticlassAveragePrecision, classes: int) -> Tensor:
    if metric.thresholds is not None:
        return metric.confmat[0, :, 1].sum(-1)
    return torch.bincount(dim_zero_cat(metric.target).flatten(), minlength=classes)


def averaged(metric: Metric, compute: Callable[[], Tensor], examples: Tensor, defined: Tensor) -> Tensor:
    """The average that the metric was asked for, over the classes for which it is defined; NaN where there is none."""
    average, metric.average = metric.average, "none"
    try:
        of_each = compute()
    finally:
        metric.average = average
    if average in (None, "none"):
        return of_each
    weights = (examples if average == "weighted" else torch.ones_like(examples)).double()[defined]
    return (of_each[defined] * weights).sum() / weights.sum()
