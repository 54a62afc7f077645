"""`data.label_kind: answers`, parts of a context that answer a question, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from snaketrain.extras.question_answering.answers import MEASURES, agreement, answers_of, coded, decoded, misplaced
from snaketrain.labels.base import MISSING, VALID, Head, LabelKind, Parser, Report, as_text
from snaketrain.labels.classes import ClassTally

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from pandas import DataFrame
    from tokenizers import Tokenizer as LibraryTokenizer
    from torch import Tensor

    from snaketrain.data.tokenizer import BatchTokenizer
    from snaketrain.labels.base import Rows, Sums
    from snaketrain.runtime.strict_json import Json, JsonObject

GROUPS = ("with an answer", "without an answer")  # of questions
SEPARATOR = " | "  # of several answers, in the table of predictions


class AnswersParser(Parser[tuple[int, ...] | None, list[int]]):
    """The texts of a row are the question and the context; labels are as `coded` writes them."""

    raw = prepared = "int64[]"
    sequence = "window"
    token_lists = ("windows", "begins", "ends", "context")  # lengths; the characters of each token in the context; the context's characters

    @staticmethod
    def text(cell: object) -> str:
        """As it is written: answers are at characters of the context."""
        return cell if isinstance(cell, str) else as_text(cell)

    def parse(self, cell: object) -> tuple[int, ...] | None:
        answers = answers_of(cell)
        return None if answers is None else coded(answers)

    def parse_beside(self, cell: object, texts: tuple[str, ...]) -> tuple[int, ...] | None:
        if problem := misplaced(answers_of(cell) or (), texts[-1]):
            raise ValueError(problem)
        return self.parse(cell)

    def state(self, label: tuple[int, ...] | None, known: set[str] | None) -> int:
        return MISSING if label is None else VALID

    def encode(self, label: tuple[int, ...] | None, class_of: Mapping[str, int]) -> list[int]:
        return list(label or ())

    def cut_off(self, rows: pyarrow.RecordBatch) -> list[int]:
        """Those whose first answer, which is learnt, no window has whole."""
        lost, columns = [], (rows[name].to_pylist() for name in ("label", *self.token_lists[:3]))
        for number, (label, windows, begins, ends) in enumerate(zip(*columns, strict=True)):
            parts = [slice(end - length, end) for length, end in zip(windows, accumulate(windows), strict=True)]
            starts = [min((begin for begin in begins[part] if begin >= 0), default=0) for part in parts]
            if label and not any(
                start <= label[0] and sum(label[:2]) <= max(ends[part]) for start, part in zip(starts, parts, strict=True)
            ):
                lost.append(number)
        return lost

    def tokenizer(self, library: LibraryTokenizer) -> BatchTokenizer:
        from snaketrain.extras.question_answering.tokenizer import WindowTokenizer

        return WindowTokenizer(library, self.data)


class AnswersTally(ClassTally[list[int]]):
    """Counts the questions with an answer, and those without."""

    def __init__(self, names: list[str]):
        super().__init__(names or [*GROUPS])

    def add(self, label: list[int]) -> None:
        self.counts[not label] += 1

    def same(self) -> str | None:
        return None if self.counts[0] else "have no answer"

    @staticmethod
    def summary(names: list[str], facts: JsonObject) -> str:
        return ClassTally.summary(names or [*GROUPS], facts)


class AnswersHead(Head):
    problem_type = "question_answering"
    metrics: Mapping[str, str] = {"loss": "min", "exact_match": "max", "f1": "max"}

    def model_fields(self, label_names: list[str]) -> JsonObject:
        return {"num_labels": 2}  # a logit for the begin of the answer, and one for its end

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Of each window: `logits` of both ends, and the places of these as `labels`."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, labels, reduction="none").mean(1)

    def sums(self, predicted: list[str], labels: Tensor) -> Sums:  # type: ignore[override]
        import torch

        pairs = zip(predicted, map(decoded, labels.tolist()), strict=True)
        found = torch.tensor([agreement(*each) for each in pairs], dtype=torch.float64).sum(0)
        return dict(zip(MEASURES, found.unbind(), strict=True))

    def measure(self, sums: Sums) -> dict[str, float]:
        return {name: float(sums[name] / sums["count"]) for name in MEASURES}

    def predict(self, logits: Tensor) -> dict[str, Tensor]:
        return {}


def window_loss(table: DataFrame) -> Callable[[np.ndarray], float]:
    losses, windows = (table[name].to_numpy(float) for name in ("loss", "windows"))
    return lambda weights: float(weights @ (losses * windows) / (weights @ windows))


class AnswersReport(Report):
    of_weights: Mapping[str, Callable[[DataFrame], Callable[[np.ndarray], float]]] = {"loss": window_loss}

    def fits(self, rows: Rows) -> bool:
        return "predicted" in rows and rows["predicted"].dtype.kind == "U"

    def labels(self, column: list[Json]) -> np.ndarray:
        import numpy as np

        found = np.empty(len(column), object)
        found[:] = [None if label is None else decoded(label) for label in column]
        return found

    def known(self, labels: np.ndarray) -> np.ndarray:
        import numpy as np

        return np.array([answers is not None for answers in labels], bool)

    def score(self, labels: np.ndarray, rows: Rows, confidence: float, bins: int) -> JsonObject:
        """The metrics of the questions that have an answer, and of the others."""
        found, answered = self.agreements(labels, rows), labels.astype(bool)
        return {
            group: {"examples": int(chosen.sum())}
            | dict(zip(MEASURES, found[chosen].mean(0).tolist() if chosen.any() else (), strict=False))
            for group, chosen in zip(GROUPS, (answered, ~answered), strict=True)
        }

    def baselines(self, labels: np.ndarray) -> dict[str, JsonObject]:
        share = sum(not answers for answers in labels) / len(labels)
        return {"constant": {"answer": "never an answer"} | dict.fromkeys(MEASURES, share)}

    def columns(self, labels: np.ndarray, rows: Rows) -> dict[str, list[str]]:
        import numpy as np

        known = self.known(labels)
        found = {"label": [SEPARATOR.join(dict.fromkeys(answers or ())) for answers in labels], "predicted": rows["predicted"].tolist()}
        if known.any():
            for name, values in zip((*MEASURES, "loss"), np.c_[self.agreements(labels, rows), rows["loss"]].T, strict=True):
                found[name] = [f"{value:.9g}" if has else "" for value, has in zip(values.tolist(), known, strict=True)]
        return found

    def agreements(self, labels: np.ndarray, rows: Rows) -> np.ndarray:
        import numpy as np

        return np.array([agreement(*each) for each in zip(rows["predicted"].tolist(), (each or () for each in labels), strict=True)])


KIND = LabelKind("answers", AnswersParser, AnswersTally, AnswersHead(), AnswersReport, has_classes=False)
