"""What the label kinds `class` and `classes` share."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from snaketrain.labels.base import BLUE, GREY, Head, Label, Report, Tally
from snaketrain.runtime.strict_json import rounded

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from torch import Tensor

    from snaketrain.config.schema.tasks import TextClassificationSettings
    from snaketrain.labels.base import ClassCounts, Losses, Rows
    from snaketrain.runtime.strict_json import Json, JsonObject
import json
from collections.abc import Sequence

MOST_LOGGED = 10  # classes
MOST_IN_FULL = 1000  # classes; the predictions of more have the scores of the most probable ones instead of all
MOST_PROBABLE = 5  # of each example


class ClassTally(Tally[Label]):
    """Counts the examples of each class."""

    def __init__(self, names: list[str]):
        super().__init__(names)
        self.counts = [0] * len(names)

    def state(self) -> Json:
        return self.counts

    def merge(self, state: Json) -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, state, strict=True)]

    def facts(self) -> JsonObject:
        return {"label_counts": self.counts}

    @staticmethod
    def summary(names: list[str], facts: JsonObject) -> str:
        shown = [f"{name} {count}" for name, count in zip(names, facts["label_counts"], strict=True)]
        more = [f"{len(shown) - MOST_LOGGED} classes more"] if len(shown) > MOST_LOGGED else []
        without = [f"none of them {facts['without_class']}"] if facts.get("without_class") else []
        return ", ".join(shown[:MOST_LOGGED] + more + without)


class ClassHead(Head):
    def model_fields(self, label_names: list[str]) -> JsonObject:
        by_number = dict(enumerate(label_names))
        return {
            "num_labels": len(label_names),
            "id2label": by_number,
            "label2id": {name: number for number, name in by_number.items()},
            "problem_type": self.problem_type,
        }

    @abstractmethod
    def balanced(self, count: int, examples: int, classes: int) -> float:
        """The weight of a class with `count` of the training examples."""

    @abstractmethod
    def weighted_losses(self, logits: Tensor, labels: Tensor, weights: Tensor | None, settings: TextClassificationSettings) -> Tensor: ...

    def training_losses(self, settings: TextClassificationSettings, names: list[str], counts: ClassCounts) -> Losses:
        if not any(dict(settings).values()):
            return self.losses
        weights = self.class_weights(settings, names, counts)
        return lambda logits, labels: self.weighted_losses(logits, labels, None if weights is None else weights.to(logits.device), settings)

    def class_weights(self, settings: TextClassificationSettings, names: list[str], counts: ClassCounts) -> Tensor | None:
        import torch

        given = settings.class_weights
        if not given:
            return None
        if isinstance(given, dict):
            settings.refuse_unknown_classes(names)
            weights = [given.get(name, 1.0) for name in names]
            if not any(weights):
                raise SystemExit("train.task.arguments.class_weights: all are 0, so that nothing is learnt. Give a class another weight.")
            return torch.tensor(weights)
        of_class, examples = counts()
        return torch.tensor([self.balanced(max(1, count), examples, len(names)) for count in of_class])

    @staticmethod
    def f1(right: Tensor, predicted: Tensor, true: Tensor) -> Tensor:
        """0 for a class that neither occurs nor is predicted, as in scikit-learn with zero_division=0."""
        return 2 * right / (predicted + true).clamp(min=1)


def focal(losses: Tensor, plain: Tensor, gamma: float) -> Tensor:
    """Losses times (1 - p) ** gamma, where p is the probability of the right answer and `plain` its negative logarithm."""
    return losses * (1 - (-plain).exp()).clamp(min=1e-8) ** gamma if gamma else losses


class ClassReport(Report):
    probability_of, share_that_is = "predicted probability of a class", "fraction of examples that have it"  # axes of the reliability plot
    margin = 0.0  # left of 0 on the x axis

    def fits(self, rows: Rows) -> bool:
        return bool(self.names) and "probabilities" in rows and rows["probabilities"].shape[1:] == (len(self.names),)

    @property
    def in_full(self) -> bool:
        """Whether the files have all scores and a confusion matrix, which for 10,000 classes alone has 100 million numbers."""
        return len(self.names) <= MOST_IN_FULL

    def left_out(self, scored: bool) -> str:
        if self.in_full:
            return ""
        return f"{len(self.names):,} classes, more than {MOST_IN_FULL:,}: the predictions have the {MOST_PROBABLE} most probable ones of each example"

    def probability_columns(self, probabilities: np.ndarray) -> dict[str, list[str]]:
        if not self.in_full:
            return self.most_probable(probabilities)
        return {f"p_{name}": [f"{p:.6f}" for p in column] for name, column in zip(self.names, probabilities.T, strict=True)}

    def most_probable(self, probabilities: np.ndarray) -> dict[str, list[str]]:
        import numpy as np

        columns: dict[str, list[str]] = {}
        ranked = [np.argsort(-row, kind="stable")[:MOST_PROBABLE] for row in probabilities]  # all at once would take twice their memory
        for place, best in enumerate(np.array(ranked, int).reshape(-1, MOST_PROBABLE).T, 1):
            columns[f"predicted_{place}"] = [self.names[number] for number in best]
            columns[f"probability_{place}"] = [f"{p:.6f}" for p in probabilities[np.arange(len(best)), best]]
        return columns

    def by_class(self, labels: np.ndarray, predicted: np.ndarray) -> dict[str, JsonObject]:
        found = CountsForReport.of(labels, predicted, len(self.names))
        keys = ("precision", "recall", "f1", "examples")
        cells = zip(found.precision, found.recall, found.f1, found.true, strict=True)
        return {
            name: {key: value.item() for key, value in zip(keys, row, strict=True)} for name, row in zip(self.names, cells, strict=True)
        }

    @staticmethod
    def calibration(confidences: np.ndarray, right: np.ndarray, bins: int) -> JsonObject:
        """Mean probability and accuracy in bins of equal width, without empty bins, and the expected calibration error.

        `sklearn.calibration.calibration_curve` puts a probability on the border of two bins into the lower one, and does not return the
        number of examples in each, by which the error is weighted.
        """
        import numpy as np

        bin_of = np.minimum((confidences * bins).astype(int), bins - 1)
        found = [
            {"examples": int(here.sum()), "probability": float(confidences[here].mean()), "accuracy": float(right[here].mean())}
            for here in (bin_of == number for number in range(bins))
            if here.any()
        ]
        error = sum(b["examples"] * abs(b["accuracy"] - b["probability"]) for b in found) / len(right)
        return {"calibration_error": error, "reliability": found}

    @classmethod
    def draw_reliability(cls, axes: Axes, results: JsonObject, labels: np.ndarray | None = None, rows: Rows | None = None) -> None:
        points = results["reliability"]
        probabilities, shares, counts = ([point[key] for point in points] for key in ("probability", "accuracy", "examples"))
        axes.plot([0, 1], [0, 1], "--", color=GREY, label="perfectly calibrated")
        axes.plot(probabilities, shares, "-", color=BLUE, linewidth=1)
        axes.scatter(probabilities, shares, s=[20 + 200 * count / sum(counts) for count in counts], color=BLUE, zorder=3)
        axes.set(
            xlim=(-cls.margin, 1.02),
            ylim=(-0.02, 1.02),
            xlabel=cls.probability_of,
            ylabel=cls.share_that_is,
            title=f"expected calibration error (ECE) {rounded(results['calibration_error'])}",
        )
        axes.plot([], [], "o-", color=BLUE, label="predictions (larger: more of them)")
        axes.legend(loc="lower right")
        axes.grid(alpha=0.3)


class CountsForReport(NamedTuple):
    """Of each class: the examples of which it is rightly predicted, is predicted, and is true.

    scikit-learn takes longer to be imported than most evaluations compute.
    """

    hits: np.ndarray
    predicted: np.ndarray
    true: np.ndarray

    @classmethod
    def of(cls, labels: np.ndarray, predicted: np.ndarray, classes: int) -> CountsForReport:
        """The class of each example, or of each a column for each class."""
        import numpy as np

        if labels.ndim == 1:
            return cls(*(np.bincount(each, minlength=classes) for each in (labels[labels == predicted], predicted, labels)))
        true, guessed = labels.astype(bool), predicted.astype(bool)
        return cls((true & guessed).sum(0), guessed.sum(0), true.sum(0))

    @property
    def precision(self) -> np.ndarray:
        return self.share(self.hits, self.predicted)

    @property
    def recall(self) -> np.ndarray:
        return self.share(self.hits, self.true)

    @property
    def f1(self) -> np.ndarray:
        return self.share(2 * self.hits, self.predicted + self.true)

    @property
    def micro_f1(self) -> float:
        return float(self.share(2 * self.hits.sum(), (self.predicted + self.true).sum()))

    @property
    def macro_f1(self) -> float:
        """As in scikit-learn, of the classes that occur or are predicted."""
        return float(self.f1[self.predicted + self.true > 0].mean())

    @staticmethod
    def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
        """0 of nothing."""
        import numpy as np

        return part / np.maximum(whole, 1)


SEPARATOR = "|"


def as_cell(chosen: list[str], classes: Sequence[str]) -> str:
    return json.dumps(chosen, ensure_ascii=False) if _as_list(classes) else SEPARATOR.join(chosen)


def in_cell(cell: str, classes: Sequence[str]) -> set[str]:
    return set(json.loads(cell) if _as_list(classes) else cell.split(SEPARATOR))


def _as_list(classes: Sequence[str]) -> bool:
    return any(SEPARATOR in name for name in classes)
