"""What `data.label_kind` means for a task: the loss, the sums, the metrics, and what is predicted from a model's outputs.

Every loss is a row for each example. Sums may have any shape; they are added over all batches and processes in double precision.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

Sums = dict[str, Tensor]


class OneClass:
    """One class for each example."""

    problem_type = "single_label_classification"  # as transformers calls it

    @staticmethod
    def outputs(label_names: list[str]) -> dict[str, Any]:
        """Fields of a transformers configuration."""
        by_number = dict(enumerate(label_names))
        return {"num_labels": len(label_names), "id2label": by_number, "label2id": {name: number for number, name in by_number.items()}}

    @staticmethod
    def losses(logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels, reduction="none", ignore_index=-100)

    @staticmethod
    def sums(logits: Tensor, labels: Tensor) -> Sums:
        true, predicted = (one_hot(classes, logits.shape[-1]).double() for classes in (labels, logits.argmax(-1)))
        return {"confusion": true.T @ predicted}

    @staticmethod
    def measure(sums: Sums) -> dict[str, float]:
        confusion = sums["confusion"]
        right = confusion.diagonal()
        return {"accuracy": float(right.sum() / sums["count"]), "macro_f1": float(f1(right, confusion.sum(0), confusion.sum(1)).mean())}

    @staticmethod
    def predict(logits: Tensor) -> dict[str, Tensor]:
        return {"probabilities": logits.softmax(-1)}


class SeveralClasses(OneClass):
    """Any number of classes for each example, each decided on its own; the loss is the mean over the classes."""

    problem_type = "multi_label_classification"

    @staticmethod
    def losses(logits: Tensor, labels: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(-1)

    @staticmethod
    def sums(logits: Tensor, labels: Tensor) -> Sums:
        predicted, true = logits > 0, labels > 0.5  # a logit above 0 is a probability above one half
        return {
            "right": (predicted & true).sum(0),
            "predicted": predicted.sum(0),
            "true": true.sum(0),
            "exact": (predicted == true).all(-1).sum(),
        }

    @staticmethod
    def measure(sums: Sums) -> dict[str, float]:
        right, predicted, true = sums["right"], sums["predicted"], sums["true"]
        return {
            "micro_f1": float(f1(right.sum(), predicted.sum(), true.sum())),
            "macro_f1": float(f1(right, predicted, true).mean()),
            "exact_match": float(sums["exact"] / sums["count"]),
        }

    @staticmethod
    def predict(logits: Tensor) -> dict[str, Tensor]:
        return {"probabilities": logits.sigmoid()}


class Number(OneClass):
    """A number for each example; the loss is the square of the error."""

    problem_type = "regression"

    @staticmethod
    def outputs(label_names: list[str]) -> dict[str, Any]:
        return {"num_labels": 1}

    @staticmethod
    def losses(logits: Tensor, labels: Tensor) -> Tensor:
        return (logits.squeeze(-1) - labels).square()

    @staticmethod
    def sums(logits: Tensor, labels: Tensor) -> Sums:
        x, y = logits.squeeze(-1).double(), labels.double()
        products = {"x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y, "absolute": (x - y).abs()}
        return {name: rows.sum() for name, rows in products.items()}

    @staticmethod
    def measure(sums: Sums) -> dict[str, float]:
        n, x, y, xx, yy, xy = (float(sums[name]) for name in ("count", "x", "y", "xx", "yy", "xy"))
        of_x, of_y, of_both = xx - x * x / n, yy - y * y / n, xy - x * y / n  # n times the variances and the covariance
        varied = [spread > 1e-13 * squares for spread, squares in ((of_x, xx), (of_y, yy))]  # less is rounding
        return {
            "mae": float(sums["absolute"]) / n,
            "pearson": of_both / math.sqrt(of_x * of_y) if all(varied) else math.nan,
            "r2": 1 - (xx - 2 * xy + yy) / of_y if varied[1] else math.nan,
        }

    @staticmethod
    def predict(logits: Tensor) -> dict[str, Tensor]:
        return {"predicted": logits.squeeze(-1)}


KINDS: dict[str, type[OneClass]] = {"class": OneClass, "classes": SeveralClasses, "number": Number}


def f1(right: Tensor, predicted: Tensor, true: Tensor) -> Tensor:
    """A class that is neither there nor predicted counts as 0, as in scikit-learn with zero_division=0."""
    return 2 * right / torch.clamp(predicted + true, min=1)
