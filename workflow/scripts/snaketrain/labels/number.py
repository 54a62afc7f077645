"""`data.label_kind: number`, a number to be predicted for each example."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from snaketrain.labels.base import (
    BLUE,
    GREY,
    MISSING,
    UNKNOWN,
    VALID,
    WITHHELD,
    Head,
    LabelKind,
    Panel,
    Parser,
    Report,
    Tally,
    as_text,
)
from snaketrain.runtime.strict_json import rounded

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from torch import Tensor

    from snaketrain.labels.base import Rows, Sums
    from snaketrain.runtime.strict_json import Json, JsonObject

MOST_POINTS = 5000  # of a scatter plot


class NumberParser(Parser[float | str | None, float]):
    data_issue = "not_a_number"
    raw = prepared = "float64"

    def parse(self, cell: object) -> float | str | None:
        """The text if it is not a number, None if it is empty."""
        text = as_text(cell)
        try:
            return float(text) if math.isfinite(float(text)) else text
        except ValueError:
            return text or None

    def state(self, label: float | str | None, known: set[str] | None) -> int:
        if label is None:
            return MISSING
        if isinstance(label, str):
            return UNKNOWN
        return WITHHELD if label == -1 else VALID

    def encode(self, label: float | str | None, class_of: Mapping[str, int]) -> float:
        assert isinstance(label, float), "rows without a number are dropped before"
        return label


class NumberTally(Tally[float]):
    """Mean, standard deviation and range."""

    def __init__(self, names: list[str]):
        super().__init__(names)
        self.examples = 0
        self.mean = self.squares = 0.0
        self.least, self.most = math.inf, -math.inf

    def add(self, label: float) -> None:
        # Welford's algorithm: no large sums that lose small differences
        self.examples += 1
        distance = label - self.mean
        self.mean += distance / self.examples
        self.squares += distance * (label - self.mean)
        self.least, self.most = min(self.least, label), max(self.most, label)

    def state(self) -> Json:
        return [self.examples, self.mean, self.squares, self.least, self.most] if self.examples else None

    def merge(self, state: Json) -> None:
        if state is None:
            return
        examples, mean, squares, least, most = state
        distance, share = mean - self.mean, examples / (self.examples + examples)
        self.mean += distance * share
        self.squares += squares + distance**2 * self.examples * share
        self.examples += examples
        self.least, self.most = min(self.least, least), max(self.most, most)

    def facts(self) -> JsonObject:
        if not self.examples:
            return {}
        deviation = math.sqrt(self.squares / self.examples)
        return {"label_mean": self.mean, "label_deviation": deviation, "label_least": self.least, "label_most": self.most}

    def same(self) -> str | None:
        return f"have the number {self.mean:g}" if self.examples and self.least == self.most else None

    @staticmethod
    def summary(names: list[str], facts: JsonObject) -> str:
        return f"labels from {facts['label_least']:g} to {facts['label_most']:g}, {facts['label_mean']:g} on average"


class NumberHead(Head):
    """The loss is the squared error."""

    problem_type = "regression"
    metrics: Mapping[str, str] = {"loss": "min", "mae": "min", "pearson": "max", "r2": "max"}
    of_rows: Mapping[str, str] = {"pearson": "snaketrain.tasks.metrics.Pearson", "r2": "snaketrain.tasks.metrics.R2"}

    def model_fields(self, label_names: list[str]) -> JsonObject:
        return {"num_labels": 1, "problem_type": self.problem_type}

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits.squeeze(-1) - labels).square()

    def sums(self, logits: Tensor, labels: Tensor) -> Sums:
        return {"absolute": (logits.squeeze(-1).double() - labels.double()).abs().sum()}

    def measure(self, sums: Sums) -> dict[str, float]:
        return {"mae": float(sums["absolute"] / sums["count"])}

    def predict(self, logits: Tensor) -> dict[str, Tensor]:
        return {"predicted": logits.squeeze(-1)}

    def metric_inputs(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return logits.squeeze(-1), labels.to(logits.dtype)


class NumberReport(Report):
    def fits(self, rows: Rows) -> bool:
        return "predicted" in rows and rows["predicted"].ndim == 1

    def labels(self, column: list[Json]) -> np.ndarray:
        import numpy as np

        return np.array([math.nan if label is None else label for label in column], float)

    def known(self, labels: np.ndarray) -> np.ndarray:
        import numpy as np

        return ~np.isnan(labels)

    def baselines(self, labels: np.ndarray) -> dict[str, JsonObject]:
        import numpy as np

        if (mean := self.train.get("label_mean")) is None:
            return {}
        squares, spread = np.square(labels - mean).mean(), labels.var()
        scores = {"loss": squares, "mae": np.abs(labels - mean).mean()} | ({"r2": 1 - squares / spread} if spread else {})
        return {"mean": {"answer": f"always {mean:.4g}, the mean of the training data"} | {k: float(v) for k, v in scores.items()}}

    def constants(self, labels: np.ndarray) -> dict[str, np.ndarray]:
        import numpy as np

        return {} if (mean := self.train.get("label_mean")) is None else {"mean": np.array([mean])}

    def columns(self, labels: np.ndarray, rows: Rows) -> dict[str, list[str]]:
        known = ["" if math.isnan(label) else f"{label:.9g}" for label in labels]
        return {"label": known, "predicted": [f"{number:.9g}" for number in rows["predicted"]]}

    @classmethod
    def panels(cls, results: JsonObject) -> list[Panel]:
        return [Panel(cls.draw_predictions), Panel(cls.draw_errors)]

    @staticmethod
    def draw_predictions(axes: Axes, results: JsonObject, labels: np.ndarray, rows: Rows) -> None:
        true, predicted = (values[:MOST_POINTS] for values in (labels, rows["predicted"]))
        ends = [min(true.min(), predicted.min()), max(true.max(), predicted.max())]
        axes.plot(ends, ends, "--", color=GREY, label="exactly right")
        axes.axhline(predicted.mean(), color=GREY, linewidth=0.8, linestyle=":", label="mean prediction")
        axes.scatter(true, predicted, s=12, alpha=0.4, color=BLUE, edgecolors="none")
        first = f", the first {MOST_POINTS} examples" if len(labels) > MOST_POINTS else ""
        axes.set(xlabel="true", ylabel="predicted", title=f"Pearson {rounded(results['metrics'].get('pearson'))}{first}")
        axes.legend(loc="upper left")
        axes.grid(alpha=0.3)

    @staticmethod
    def draw_errors(axes: Axes, results: JsonObject, labels: np.ndarray, rows: Rows) -> None:
        import numpy as np

        missed = rows["predicted"] - labels
        axes.hist(missed[np.isfinite(missed)], bins=min(40, max(5, len(missed) // 5)), color=BLUE)
        axes.axvline(0, color=GREY, linestyle="--")
        axes.set(xlabel="predicted minus true", ylabel="examples", title=f"mean absolute error {rounded(float(np.abs(missed).mean()))}")
        axes.grid(alpha=0.3)


KIND = LabelKind("number", NumberParser, NumberTally, NumberHead(), NumberReport, has_classes=False)
