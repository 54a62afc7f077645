"""`data.label_kind: class`, one class for each example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from snaketrain.labels.base import BLUE, MISSING, MOST_CHARACTERS, UNKNOWN, VALID, LabelKind, Panel, Parser, as_text, drawable, is_missing
from snaketrain.labels.classes import ClassHead, ClassReport, ClassTally, CountsForReport, focal

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from torch import Tensor

    from snaketrain.config.schema.tasks import TextClassificationSettings
    from snaketrain.labels.base import Rows, Sums
    from snaketrain.runtime.strict_json import Json, JsonObject

MOST_NUMBERS = 20  # classes whose counts are readable in a confusion matrix
MOST_NAMES = 60  # beside a confusion matrix; of more classes every second, third ... is named
MOST_PAIRS, MOST_BARS = 100, 20  # of classes, in the results and in the plot, where there are too many for a confusion matrix


class OneClassParser(Parser[str, int]):
    """A cell is the name of a class."""

    raw, prepared = "string", "int64"
    missing = -100  # ignored by PyTorch's losses and metrics

    def parse(self, cell: object) -> str:
        return as_text(cell)

    def state(self, label: str, known: set[str] | None) -> int:
        if label in known if known is not None else label:
            return VALID
        return MISSING if is_missing(label) else UNKNOWN

    def classes(self, label: str) -> Iterable[str]:
        return (label,)

    def encode(self, label: str, class_of: Mapping[str, int]) -> int:
        return class_of[label]


class OneClassTally(ClassTally[int]):
    def add(self, label: int) -> None:
        self.counts[label] += 1

    def same(self) -> str | None:
        present = [name for name, count in zip(self.names, self.counts, strict=True) if count]
        return f"are of one class, {present[0]!r}" if len(present) == 1 else None


class OneClassHead(ClassHead):
    problem_type = "single_label_classification"
    metrics: Mapping[str, str] = {"loss": "min", "accuracy": "max", "macro_f1": "max"}

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, labels, reduction="none", ignore_index=-100)

    def weighted_losses(self, logits: Tensor, labels: Tensor, weights: Tensor | None, settings: TextClassificationSettings) -> Tensor:
        from torch.nn.functional import cross_entropy

        weights = None if weights is None else weights.to(logits.dtype)
        losses = cross_entropy(logits, labels, weights, reduction="none", label_smoothing=settings.label_smoothing)
        return focal(losses, self.losses(logits, labels), settings.focal_gamma)

    def balanced(self, count: int, examples: int, classes: int) -> float:
        """1 on average over the training examples."""
        return examples / (classes * count)

    def sums(self, logits: Tensor, labels: Tensor) -> Sums:
        from torch.nn.functional import one_hot

        true, predicted = (one_hot(classes, logits.shape[-1]).bool() for classes in (labels, logits.argmax(-1)))
        return {"right": (true & predicted).sum(0), "predicted": predicted.sum(0), "true": true.sum(0)}

    def measure(self, sums: Sums) -> dict[str, float]:
        right, predicted, true = sums["right"], sums["predicted"], sums["true"]
        f1 = self.f1(right, predicted, true)[predicted + true > 0]  # as in scikit-learn, of the classes that occur or are predicted
        return {"accuracy": float(right.sum() / sums["count"]), "macro_f1": float(f1.mean())}

    def predict(self, logits: Tensor) -> dict[str, Tensor]:
        return {"probabilities": logits.softmax(-1)}

    def metric_inputs(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return logits.softmax(-1), labels


class OneClassReport(ClassReport):
    probability_of, share_that_is = "confidence: probability of the predicted class", "fraction correct"

    def labels(self, column: list[Json]) -> np.ndarray:
        import numpy as np

        return np.array(column, int)

    def known(self, labels: np.ndarray) -> np.ndarray:
        return labels >= 0

    def score(self, labels: np.ndarray, rows: Rows, confidence: float, bins: int) -> JsonObject:
        import numpy as np

        probabilities = rows["probabilities"]
        predicted = probabilities.argmax(axis=1)
        right = predicted == labels
        found = CountsForReport.of(labels, predicted, len(self.names))
        scores = {
            **({"loss": float(np.mean(rows["loss"]))} if "loss" in rows else {}),
            "accuracy": float(right.mean()),
            "interval": self.wilson_interval(int(right.sum()), len(labels), confidence),
            "confidence": confidence,
            "macro_f1": found.macro_f1,
            "majority_accuracy": float(found.true.max() / len(labels)),
            "majority_class": self.names[int(found.true.argmax())],
            **self.calibration(probabilities.max(axis=1), right, bins),
            "classes": self.by_class(labels, predicted),
        }
        if not self.in_full:
            return scores | {"confused": self.confused(labels, predicted)}
        pairs = np.bincount(labels * len(self.names) + predicted, minlength=len(self.names) ** 2)
        return scores | {"confusion": pairs.reshape(len(self.names), -1).tolist()}

    def confused(self, labels: np.ndarray, predicted: np.ndarray) -> JsonObject:
        """Instead of a matrix that would be too large: the number of pairs that were confused, and the most frequent of them."""
        import numpy as np

        wrong = labels != predicted
        pairs, counts = np.unique(np.stack([labels[wrong], predicted[wrong]]), axis=1, return_counts=True)
        most = [(*pairs[:, place], counts[place]) for place in np.argsort(-counts, kind="stable")[:MOST_PAIRS]]
        names = [{"true": self.names[true], "predicted": self.names[guess], "examples": int(count)} for true, guess, count in most]
        return {"pairs": len(counts), "most_frequent": names}

    def left_out(self, scored: bool) -> str:
        most = f", the results the {MOST_PAIRS} most frequent confusions instead of the confusion matrix" if scored else ""
        return f"{shorter}{most}" if (shorter := super().left_out(scored)) else ""

    def baselines(self, labels: np.ndarray) -> dict[str, JsonObject]:
        import numpy as np

        most = np.bincount(labels, minlength=len(self.names)).argmax()
        found = CountsForReport.of(labels, np.full_like(labels, most), len(self.names))
        scores = {"accuracy": float(found.hits.sum() / len(labels)), "macro_f1": found.macro_f1}
        return {"majority": {"answer": f"always {self.names[most]}"} | scores}

    def constants(self, labels: np.ndarray) -> dict[str, np.ndarray]:
        """With the frequencies of the classes as their probabilities."""
        import numpy as np

        frequencies = np.bincount(labels, minlength=len(self.names)) / len(labels)
        return {"majority": np.log(np.clip(frequencies, self.smallest_share, None))}

    def columns(self, labels: np.ndarray, rows: Rows) -> dict[str, list[str]]:
        probabilities = rows["probabilities"]
        best = probabilities.argmax(axis=1)
        columns = {
            "label": [self.names[label] if label >= 0 else "" for label in labels],
            "predicted": [self.names[number] for number in best],
            "probability": [f"{p:.6f}" for p in probabilities.max(axis=1)],
            **self.probability_columns(probabilities),
        }
        if not self.in_full and self.known(labels).any():  # the true class need not be among the most probable ones
            found = zip(labels, probabilities, strict=True)  # from which the comparison computes the loss
            columns["label_probability"] = [f"{row[label]:.6f}" if label >= 0 else "" for label, row in found]
        return columns

    @classmethod
    def panels(cls, results: JsonObject) -> list[Panel]:
        if "confusion" not in results:
            return [Panel(cls.draw_most_confused, 6.5), Panel(cls.draw_reliability)]
        side = max(4.0, 1.6 + 0.7 * min(len(results["classes"]), MOST_NAMES))
        return [Panel(cls.draw_confusion_matrix, side + 0.8, side), Panel(cls.draw_reliability)]

    @staticmethod
    def draw_confusion_matrix(axes: Axes, results: JsonObject, labels: np.ndarray, rows: Rows) -> None:
        import numpy as np

        names, counts = [drawable(name, MOST_CHARACTERS) for name in results["classes"]], np.array(results["confusion"])
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        axes.set(xlabel="predicted", ylabel="true", title="confusion matrix")
        crowded = len(names) > 3
        named = range(0, len(names), -(-len(names) // MOST_NAMES))
        axes.set_xticks(named, names[:: named.step], rotation=45 if crowded else 0, ha="right" if crowded else "center")
        axes.set_yticks(named, names[:: named.step])
        if len(names) <= MOST_NUMBERS:
            for (row, column), count in np.ndenumerate(counts):
                share = shares[row, column]
                text = f"{count}\n{share:.0%}"
                axes.text(column, row, text, ha="center", va="center", color="white" if share > 0.7 else "black", fontsize=9)
        axes.figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)

    @staticmethod
    def draw_most_confused(axes: Axes, results: JsonObject, labels: np.ndarray, rows: Rows) -> None:
        most = results["confused"]["most_frequent"][:MOST_BARS]
        axes.barh(range(len(most)), [pair["examples"] for pair in most], color=BLUE)
        names = [[drawable(pair[end], MOST_CHARACTERS // 2) for end in ("true", "predicted")] for pair in most]
        axes.set_yticks(range(len(most)), [f"{true} → {predicted}" for true, predicted in names], fontsize=8)
        axes.invert_yaxis()
        axes.set(xlabel="examples", title=f"most confused of {results['confused']['pairs']} pairs (true → predicted)")


KIND = LabelKind("class", OneClassParser, OneClassTally, OneClassHead(), OneClassReport, served=True)
