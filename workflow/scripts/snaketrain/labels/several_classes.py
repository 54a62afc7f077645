"""`data.label_kind: classes`, any number of classes for each example, each predicted independently."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from snaketrain.labels.base import (
    BLUE,
    MISSING,
    MOST_CHARACTERS,
    UNKNOWN,
    VALID,
    WITHHELD,
    LabelKind,
    Panel,
    Parser,
    as_text,
    drawable,
    is_missing,
)
from snaketrain.labels.classes import ClassHead, ClassReport, ClassTally, CountsForReport, as_cell, focal

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from torch import Tensor

    from snaketrain.config.schema.tasks import TextClassificationSettings
    from snaketrain.labels.base import Rows, Sums
    from snaketrain.runtime.strict_json import Json, JsonObject

MOST_SETS = 100_000  # different sets of classes that are counted, which bounds the memory
MOST_BARS = 40  # classes; more would not be readable


class SeveralClassesParser(Parser[tuple[str, ...] | None, list[int]]):
    """A cell contains the names of any number of classes: a list, or text with a separator; an empty one has no class."""

    raw, prepared = "string[]", "int64[]"

    def parse(self, cell: object) -> tuple[str, ...] | None:
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return None
        if isinstance(cell, list) and None in cell:
            raise ValueError("a class in the list is null")
        parts = cell if isinstance(cell, list) else (cell if isinstance(cell, str) else as_text(cell)).split(self.data.label_separator)
        return tuple(dict.fromkeys(name for name in map(as_text, parts) if name))

    def state(self, label: tuple[str, ...] | None, known: set[str] | None) -> int:
        if not label:
            return MISSING if label is None else WITHHELD
        if known is None or known.issuperset(label):
            return VALID
        return MISSING if all(map(is_missing, label)) else UNKNOWN

    def classes(self, label: tuple[str, ...] | None) -> Iterable[str]:
        return label or ()

    def encode(self, label: tuple[str, ...] | None, class_of: Mapping[str, int]) -> list[int]:
        return sorted({class_of[name] for name in label or ()})


class SeveralClassesTally(ClassTally[list[int]]):
    """Also counts which classes most often occur together."""

    def __init__(self, names: list[str]):
        super().__init__(names)
        self.sets: Counter[tuple[int, ...]] = Counter()

    def add(self, label: list[int]) -> None:
        for number in label:
            self.counts[number] += 1
        key = tuple(label)
        if key in self.sets or len(self.sets) < MOST_SETS:
            self.sets[key] += 1

    def state(self) -> Json:
        return {"counts": self.counts, "sets": [[list(key), count] for key, count in self.sets.items()]}

    def merge(self, state: Json) -> None:
        super().merge(state["counts"])
        for numbers, count in state["sets"]:
            key = tuple(numbers)
            if key in self.sets or len(self.sets) < MOST_SETS:
                self.sets[key] += count

    def facts(self) -> JsonObject:
        # the first of equally frequent ones, so that the order of the rows does not matter
        common = min(self.sets, key=lambda key: (-self.sets[key], key), default=())
        return super().facts() | {"without_class": self.sets[()], "most_common_labels": [self.names[number] for number in common]}

    def same(self) -> str | None:
        if len(self.sets) != 1:
            return None
        return f"have the same classes, {', '.join(self.facts()['most_common_labels']) or 'none'}"


class SeveralClassesHead(ClassHead):
    """The loss is the mean over the classes."""

    problem_type = "multi_label_classification"
    metrics: Mapping[str, str] = {"loss": "min", "micro_f1": "max", "macro_f1": "max", "exact_match": "max"}

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        from torch.nn.functional import binary_cross_entropy_with_logits

        return binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(-1)

    def weighted_losses(self, logits: Tensor, labels: Tensor, weights: Tensor | None, settings: TextClassificationSettings) -> Tensor:
        from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

        smoothed = labels * (1 - settings.label_smoothing) + settings.label_smoothing / 2
        losses = cross_entropy(logits, smoothed, reduction="none", pos_weight=weights)
        return focal(losses, cross_entropy(logits, labels, reduction="none"), settings.focal_gamma).mean(-1)

    def balanced(self, count: int, examples: int, classes: int) -> float:
        """Having the class weighs as much as not having it, over the training examples."""
        return (examples - count) / count

    def sums(self, logits: Tensor, labels: Tensor) -> Sums:
        predicted, true = logits > 0, labels > 0.5  # a logit above 0 is a probability above one half
        return {
            "right": (predicted & true).sum(0),
            "predicted": predicted.sum(0),
            "true": true.sum(0),
            "exact": (predicted == true).all(-1).sum(),
        }

    def measure(self, sums: Sums) -> dict[str, float]:
        right, predicted, true = sums["right"], sums["predicted"], sums["true"]
        return {
            "micro_f1": float(self.f1(right.sum(), predicted.sum(), true.sum())),
            "macro_f1": float(self.f1(right, predicted, true).mean()),
            "exact_match": float(sums["exact"] / sums["count"]),
        }

    def predict(self, logits: Tensor) -> dict[str, Tensor]:
        return {"probabilities": logits.sigmoid()}

    def metric_inputs(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return logits.sigmoid(), labels.long()


class SeveralClassesReport(ClassReport):
    margin = 0.02

    def labels(self, column: list[Json]) -> np.ndarray:
        import numpy as np

        rows = np.zeros((len(column), len(self.names)))
        for row, label in zip(rows, column, strict=True):
            row[slice(None) if label is None else np.array(label, int)] = math.nan if label is None else 1
        return rows

    def known(self, labels: np.ndarray) -> np.ndarray:
        import numpy as np

        return ~np.isnan(labels).any(axis=1)

    def score(self, labels: np.ndarray, rows: Rows, confidence: float, bins: int) -> JsonObject:
        probabilities, true = rows["probabilities"], labels > 0.5
        return self.calibration(probabilities.ravel(), true.ravel(), bins) | {"classes": self.by_class(true, probabilities > 0.5)}

    def baselines(self, labels: np.ndarray) -> dict[str, JsonObject]:
        if "label_counts" not in self.train:
            return {}
        examples = self.train["examples"]
        frequent = [name for name, count in zip(self.names, self.train["label_counts"], strict=True) if 2 * count > examples]
        answers = {"most_common": self.train["most_common_labels"], "majority": frequent}
        return {
            name: {"answer": f"always {', '.join(answer) or 'none'}"} | self.constant(labels, answer) for name, answer in answers.items()
        }

    def constants(self, labels: np.ndarray) -> dict[str, np.ndarray]:
        """With the frequencies of the classes in the training data as their probabilities."""
        import numpy as np

        if "label_counts" not in self.train:
            return {}
        frequencies = np.clip(np.array(self.train["label_counts"]) / self.train["examples"], self.smallest_share, 1 - self.smallest_share)
        return {"majority": np.log(frequencies / (1 - frequencies))}

    def constant(self, labels: np.ndarray, answer: list[str]) -> dict[str, float]:
        import numpy as np

        constant = np.tile([name in answer for name in self.names], (len(labels), 1))
        found = CountsForReport.of(labels, constant, len(self.names))
        exact = float((labels == constant).all(axis=1).mean())
        return {"micro_f1": found.micro_f1, "macro_f1": float(found.f1.mean()), "exact_match": exact}

    def columns(self, labels: np.ndarray, rows: Rows) -> dict[str, list[str]]:
        import numpy as np

        probabilities = rows["probabilities"]
        columns = {"label": self.joined(labels), "predicted": self.joined(probabilities)} | self.probability_columns(probabilities)
        if not self.in_full and self.known(labels).any():  # of any class, which need not be among the most probable ones
            errors = np.abs(probabilities - labels).max(axis=1)
            columns["largest_error"] = ["" if np.isnan(error) else f"{error:.6f}" for error in errors]
        return columns

    def joined(self, rows: np.ndarray) -> list[str]:
        import numpy as np

        return [as_cell([self.names[number] for number in np.flatnonzero(row > 0.5)], self.names) for row in rows]

    @classmethod
    def panels(cls, results: JsonObject) -> list[Panel]:
        height = max(4.6, 1 + 0.45 * min(len(results["classes"]), MOST_BARS))
        return [Panel(cls.draw_class_bars, 5.5, height), Panel(cls.draw_reliability)]

    @staticmethod
    def draw_class_bars(axes: Axes, results: JsonObject, labels: np.ndarray, rows: Rows) -> None:
        """Precision, recall and F1 of the most frequent classes."""
        import numpy as np

        most = sorted(results["classes"].items(), key=lambda item: -item[1]["examples"])[:MOST_BARS]
        places = np.arange(len(most))
        for offset, key, colour in ((-0.27, "precision", "#9dbfe3"), (0, "recall", "#5b93cf"), (0.27, "f1", BLUE)):
            axes.barh(places + offset, [cells[key] for _, cells in most], height=0.25, color=colour, label=key.replace("f1", "F1"))
        axes.set_yticks(places, [f"{drawable(name, MOST_CHARACTERS)} ({cells['examples']})" for name, cells in most])
        axes.invert_yaxis()
        more = len(results["classes"]) - len(most)
        axes.set(xlim=(0, 1.02), title=f"by class (examples){f', without {more} rarer ones' if more else ''}")
        axes.grid(alpha=0.3, axis="x")
        axes.legend(loc="lower right")


KIND = LabelKind("classes", SeveralClassesParser, SeveralClassesTally, SeveralClassesHead(), SeveralClassesReport)
