"""Matthews correlation as in scikit-learn: torchmetrics' is up to 0.02, rather than 0, for a constant answer among two classes."""

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassMatthewsCorrCoef, MultilabelMatthewsCorrCoef


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
