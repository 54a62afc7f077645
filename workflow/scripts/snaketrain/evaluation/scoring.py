"""What can be said of predictions beyond what the task measures: by class, how sure, how certain, and beside which constant answers.

One class for each `data.label_kind`. Arrays have a row for each example; `rows` are those that the task predicts, by name.
"""

import math
from statistics import NormalDist
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

Rows = dict[str, np.ndarray]


class OneClass:
    def __init__(self, facts: dict[str, Any]):
        self.names: list[str] = facts["label_names"]
        self.train: dict[str, Any] = facts.get("splits", {}).get("train", {})

    def fits(self, rows: Rows) -> bool:
        """Whether the task predicts what belongs to this kind of label, and not something of its own."""
        return bool(self.names) and "probabilities" in rows and rows["probabilities"].shape[1:] == (len(self.names),)

    def labels(self, column: list) -> np.ndarray:
        return np.array(column, int)

    def known(self, labels: np.ndarray) -> np.ndarray:
        return labels >= 0

    def score(self, labels: np.ndarray, rows: Rows, confidence: float, bins: int) -> dict[str, Any]:
        classes, probabilities = range(len(self.names)), rows["probabilities"]
        predicted = probabilities.argmax(axis=1)
        right = predicted == labels
        counts = np.bincount(labels, minlength=len(self.names))
        f1 = f1_score(labels, predicted, labels=classes, average="macro", zero_division=0)
        return {
            **({"loss": float(np.mean(rows["loss"]))} if "loss" in rows else {}),
            "accuracy": float(right.mean()),
            "interval": list(wilson(int(right.sum()), len(labels), confidence)),
            "confidence": confidence,
            "macro_f1": float(f1),
            "majority_accuracy": float(counts.max() / len(labels)),
            "majority_class": self.names[int(counts.argmax())],
            **calibrated(probabilities.max(axis=1), right, bins),
            "classes": by_class(self.names, labels, predicted),
            "confusion": confusion_matrix(labels, predicted, labels=classes).tolist(),
        }

    def baselines(self, labels: np.ndarray) -> dict[str, dict[str, Any]]:
        """What constant answers would have got: the most that is possible without reading the text."""
        most = np.bincount(labels, minlength=len(self.names)).argmax()
        constant, classes = np.full_like(labels, most), range(len(self.names))
        accuracy, f1 = accuracy_score(labels, constant), f1_score(labels, constant, labels=classes, average="macro", zero_division=0)
        return {"majority": {"answer": f"always {self.names[most]}", "accuracy": float(accuracy), "macro_f1": float(f1)}}

    def columns(self, labels: np.ndarray, rows: Rows) -> dict[str, list]:
        """Of the table of predictions."""
        probabilities = rows["probabilities"]
        best = probabilities.argmax(axis=1)
        return {
            "label": [self.names[label] if label >= 0 else "" for label in labels],
            "predicted": [self.names[number] for number in best],
            "probability": [f"{p:.6f}" for p in probabilities.max(axis=1)],
            **self._probabilities(probabilities),
        }

    def _probabilities(self, probabilities: np.ndarray) -> dict[str, list]:
        return {f"p_{name}": [f"{p:.6f}" for p in column] for name, column in zip(self.names, probabilities.T, strict=True)}


class SeveralClasses(OneClass):
    def labels(self, column: list) -> np.ndarray:
        rows = np.zeros((len(column), len(self.names)))
        for row, label in zip(rows, column, strict=True):
            row[slice(None) if label is None else np.array(label, int)] = math.nan if label is None else 1
        return rows

    def known(self, labels: np.ndarray) -> np.ndarray:
        return ~np.isnan(labels).any(axis=1)

    def score(self, labels: np.ndarray, rows: Rows, confidence: float, bins: int) -> dict[str, Any]:
        probabilities, true = rows["probabilities"], labels > 0.5
        return calibrated(probabilities.ravel(), true.ravel(), bins) | {"classes": by_class(self.names, true, probabilities > 0.5)}

    def baselines(self, labels: np.ndarray) -> dict[str, dict[str, Any]]:
        if "label_counts" not in self.train:
            return {}
        examples = self.train["examples"]
        frequent = [name for name, count in zip(self.names, self.train["label_counts"], strict=True) if 2 * count > examples]
        answers = {"most_common": self.train["most_common_labels"], "majority": frequent}
        return {
            name: {"answer": f"always {', '.join(answer) or 'none'}"} | self._constant(labels, answer) for name, answer in answers.items()
        }

    def _constant(self, labels: np.ndarray, answer: list[str]) -> dict[str, float]:
        constant = np.tile([name in answer for name in self.names], (len(labels), 1))
        scores = {f"{average}_f1": f1_score(labels, constant, average=average, zero_division=0) for average in ("micro", "macro")}
        return {name: float(score) for name, score in (scores | {"exact_match": accuracy_score(labels, constant)}).items()}

    def columns(self, labels: np.ndarray, rows: Rows) -> dict[str, list]:
        probabilities = rows["probabilities"]
        return {"label": self._joined(labels), "predicted": self._joined(probabilities)} | self._probabilities(probabilities)

    def _joined(self, rows: np.ndarray) -> list[str]:
        return ["|".join(name for name, value in zip(self.names, row, strict=True) if value > 0.5) for row in rows]


class Number(OneClass):
    def fits(self, rows: Rows) -> bool:
        return "predicted" in rows and rows["predicted"].ndim == 1

    def labels(self, column: list) -> np.ndarray:
        return np.array([math.nan if label is None else label for label in column], float)

    def known(self, labels: np.ndarray) -> np.ndarray:
        return ~np.isnan(labels)

    def score(self, labels: np.ndarray, rows: Rows, confidence: float, bins: int) -> dict[str, Any]:
        return {}

    def baselines(self, labels: np.ndarray) -> dict[str, dict[str, Any]]:
        if (mean := self.train.get("label_mean")) is None:
            return {}
        squares, spread = np.square(labels - mean).mean(), labels.var()
        scores = {"loss": squares, "mae": np.abs(labels - mean).mean(), "r2": 1 - squares / spread if spread else math.nan}
        return {"mean": {"answer": f"always {mean:.4g}, the mean of the training data"} | {k: float(v) for k, v in scores.items()}}

    def columns(self, labels: np.ndarray, rows: Rows) -> dict[str, list]:
        known = ["" if math.isnan(label) else f"{label:.9g}" for label in labels]
        return {"label": known, "predicted": [f"{number:.9g}" for number in rows["predicted"]]}


KINDS: dict[str, type[OneClass]] = {"class": OneClass, "classes": SeveralClasses, "number": Number}


def by_class(names: list[str], labels: np.ndarray, predicted: np.ndarray) -> dict[str, dict[str, Any]]:
    columns = precision_recall_fscore_support(labels, predicted, labels=range(len(names)), average=None, zero_division=0)
    keys = ("precision", "recall", "f1", "examples")
    cells = zip(*columns, strict=True)
    return {name: {key: value.item() for key, value in zip(keys, row, strict=True)} for name, row in zip(names, cells, strict=True)}


def wilson(right: int, examples: int, confidence: float) -> tuple[float, float]:
    """Wilson's interval of a share; unlike the usual plus-minus it stays within 0 and 1 and holds for few examples."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, denominator = right / examples, 1 + z * z / examples
    centre = (share + z * z / (2 * examples)) / denominator
    half = z / denominator * math.sqrt(share * (1 - share) / examples + z * z / (4 * examples * examples))
    return max(0.0, centre - half), min(1.0, centre + half)


def calibration(confidences: np.ndarray, right: np.ndarray, bins: int) -> list[dict[str, Any]]:
    """Mean probability and share that is right of the predictions, in bins of equal width; empty bins are left out."""
    place = np.minimum((np.asarray(confidences) * bins).astype(int), bins - 1)
    return [
        {"examples": int(here.sum()), "probability": float(confidences[here].mean()), "accuracy": float(right[here].mean())}
        for here in (place == b for b in range(bins))
        if here.any()
    ]


def calibrated(confidences: np.ndarray, right: np.ndarray, bins: int) -> dict[str, Any]:
    found = calibration(confidences, right, bins)
    error = sum(b["examples"] * abs(b["accuracy"] - b["probability"]) for b in found) / len(right)
    return {"calibration_error": error, "reliability": found}
