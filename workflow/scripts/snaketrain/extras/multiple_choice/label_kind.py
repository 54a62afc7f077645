"""`data.label_kind: choice`, the number of the right one of a question's choices."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from snaketrain.extras.multiple_choice import CHOICE_BREAK
from snaketrain.labels.base import MISSING, VALID, Head, LabelKind, Parser, Report, Tally, as_text, is_missing

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame
    from tokenizers import Tokenizer as LibraryTokenizer
    from torch import Tensor

    from snaketrain.data.tokenizer import BatchTokenizer
    from snaketrain.labels.base import Rows, Sums
    from snaketrain.runtime.strict_json import Json, JsonObject

NUMBER, LETTER = re.compile(r"\d+"), re.compile(r"[A-Z]")
NO_LABEL = -100  # ignored by PyTorch's losses
PREDICTED = {"accuracy": "predicted", "normalized_accuracy": "normalized_predicted"}  # what is right, by the metric


class ChoiceParser(Parser[int | None, int]):
    """The texts of a row are the question and the choices."""

    raw = prepared = "int64"
    missing = NO_LABEL
    sequence = "choice"
    token_lists = ("choices", "scored")  # the lengths of the sequences; whether each token is of a choice

    @staticmethod
    def text(cell: object) -> str:
        """A list, or a text with a choice on each line, which may end as on Windows."""
        given = cell if isinstance(cell, list) else as_text(cell).split(CHOICE_BREAK)
        parts = (each if isinstance(each, str) else as_text(each) for each in given)
        return CHOICE_BREAK.join(" ".join(part.splitlines()) for part in parts)

    def parse(self, cell: object) -> int | None:
        text = as_text(cell)
        if is_missing(text):
            return None
        if not NUMBER.fullmatch(text) and not LETTER.fullmatch(text):
            raise ValueError(f"{text[:40]!r} is neither the number of a choice, from 0, nor its letter, from A")
        return int(text) if text.isdecimal() else ord(text) - ord("A")

    def parse_beside(self, cell: object, texts: tuple[str, ...]) -> int | None:
        label, choices = self.parse(cell), texts[-1].split(CHOICE_BREAK)
        if len(choices) < 2:
            raise ValueError("there is one choice: give a list of several, or a text with a choice on each line")
        if empty := [number for number, choice in enumerate(choices) if not choice.strip()]:
            raise ValueError(f"choice {empty[0]}, counted from 0, is empty")
        if label is not None and label >= len(choices):
            raise ValueError(f"it is choice {label}, counted from 0, of {len(choices)}")
        return label

    def state(self, label: int | None, known: set[str] | None) -> int:
        return MISSING if label is None else VALID

    def encode(self, label: int | None, class_of: Mapping[str, int]) -> int:
        return NO_LABEL if label is None else label

    def oddity(self, label: int | None, texts: tuple[str, ...]) -> str | None:
        choices = texts[-1].split(CHOICE_BREAK)
        twice = next((choice for choice in choices if choices.count(choice) > 1), None)
        return None if twice is None else f"several choices are {twice!r}"

    def tokenizer(self, library: LibraryTokenizer) -> BatchTokenizer:
        from snaketrain.extras.multiple_choice.tokenizer import ChoiceTokenizer

        return ChoiceTokenizer(library, self.data)


class ChoiceTally(Tally[int]):
    """Counts how often each number is the right one."""

    def __init__(self, names: list[str]):
        super().__init__(names)
        self.counts: list[int] = []

    def add(self, label: int) -> None:
        self.counts += [0] * (label + 1 - len(self.counts))
        self.counts[label] += 1

    def state(self) -> Json:
        return self.counts

    def merge(self, state: Json) -> None:
        both = max(len(self.counts), len(state))
        mine, theirs = (counts + [0] * (both - len(counts)) for counts in (self.counts, state))
        self.counts = [one + other for one, other in zip(mine, theirs, strict=True)]

    def facts(self) -> JsonObject:
        return {"right": self.counts}

    def same(self) -> str | None:
        return f"have choice {len(self.counts) - 1} as the answer" if sum(map(bool, self.counts)) == 1 else None

    @staticmethod
    def summary(names: list[str], facts: JsonObject) -> str:
        return ", ".join(f"choice {number} {count}" for number, count in enumerate(facts["right"]))


class ChoiceHead(Head):
    """Of scores with a column for each choice, -inf behind those of a question."""

    problem_type = "multiple_choice"
    metrics: Mapping[str, str] = {"loss": "min", "accuracy": "max", "normalized_accuracy": "max"}

    def model_fields(self, label_names: list[str]) -> JsonObject:
        return {"num_labels": 2}  # transformers' default: such a model has one score for each choice

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, labels, reduction="none", ignore_index=NO_LABEL)

    def sums(self, logits: Tensor, labels: Tensor) -> Sums:
        """`logits`: the scores, and behind them, in another dimension, their means over tokens."""
        return {name: (scores.argmax(-1) == labels).sum() for name, scores in zip(PREDICTED, logits.unbind(-1), strict=True)}

    def measure(self, sums: Sums) -> dict[str, float]:
        return {name: float(sums[name] / sums["count"]) for name in PREDICTED}

    def predict(self, logits: Tensor) -> dict[str, Tensor]:
        return {"probability": logits[..., 0].softmax(-1).amax(-1)}


def of_right(column: str) -> Callable[[DataFrame], Callable[[np.ndarray], float]]:
    def make(table: DataFrame) -> Callable[[np.ndarray], float]:
        right = (table["label"] == table[column]).to_numpy(float)
        return lambda weights: float(weights @ right / weights.sum())

    return make


class ChoiceReport(Report):
    of_weights: Mapping[str, Callable[[DataFrame], Callable[[np.ndarray], float]]] = {
        name: of_right(column) for name, column in PREDICTED.items()
    }

    def fits(self, rows: Rows) -> bool:
        return set(PREDICTED.values()) <= rows.keys()

    def labels(self, column: list[Json]) -> np.ndarray:
        import numpy as np

        return np.array([NO_LABEL if label is None else label for label in column], int)

    def known(self, labels: np.ndarray) -> np.ndarray:
        known: np.ndarray = labels >= 0
        return known

    def score(self, labels: np.ndarray, rows: Rows, confidence: float, bins: int) -> JsonObject:
        right = int((rows["predicted"].astype(int) == labels).sum())
        return {"interval": self.wilson_interval(right, len(labels), confidence), "confidence": confidence}

    def baselines(self, labels: np.ndarray) -> dict[str, JsonObject]:
        import numpy as np

        counts = np.bincount(labels)
        share = float(counts.max() / len(labels))
        return {"majority": {"answer": f"always choice {counts.argmax()}"} | dict.fromkeys(PREDICTED, share)}

    def columns(self, labels: np.ndarray, rows: Rows) -> dict[str, list[str]]:
        known = self.known(labels)
        found = {"label": [str(label) if has else "" for label, has in zip(labels.tolist(), known, strict=True)]}
        found["predicted"] = rows["predicted"].tolist()
        if known.any():
            found["loss"] = [f"{loss:.9g}" if has else "" for loss, has in zip(rows["loss"].tolist(), known, strict=True)]
        return found


KIND = LabelKind("choice", ChoiceParser, ChoiceTally, ChoiceHead(), ChoiceReport, has_classes=False)
