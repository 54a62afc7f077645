"""What a kind of label is made of. A kind is one file in this folder; `data.label_kind` names it.

Its classes end in `Parser`, `Tally`, `Head` and `Report`, and the digests of code go by these endings: preparing the data depends
on the first two, training on `Head`, and evaluation on `Head` and `Report`, so that another picture trains nothing again.

Every job reads these files again to check the configuration, so torch, numpy, pyarrow and scikit-learn are imported where they are used.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from snaketrain.data.sources.data_issues import RARE

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from matplotlib.axes import Axes
    from torch import Tensor

    from snaketrain.config.schema import Data
    from snaketrain.runtime.json_types import Json, JsonObject

    Rows = dict[str, np.ndarray]  # what a task predicts, by name; a row for each example
    Sums = dict[str, Tensor]

Cell = TypeVar("Cell")  # what is read from a cell of the raw data
Label = TypeVar("Label")  # as it stands in the prepared data

# WITHHELD is a label like others, unless a whole split says so: that is how labels of a test set are withheld
GOOD, MISSING, UNKNOWN, WITHHELD = 0, 1, 2, 3


def is_missing(label: str) -> bool:
    """The hub's test sets have -1 where a label is withheld; where -1 is a class, it is known as one before this is asked."""
    return label in ("", "-1")


class Parser(ABC, Generic[Cell, Label]):
    """Reads the column `data.label` of the raw data."""

    data_issue = "unknown_label"  # a row with an unusable label is counted as this

    def __init__(self, data: Data):
        self.data = data

    @abstractmethod
    def parse(self, cell: object) -> Cell: ...

    @abstractmethod
    def state(self, label: Cell, known: set[str] | None) -> int:
        """GOOD, MISSING, UNKNOWN or WITHHELD. `known` are the labels that count; None: every label that occurs."""

    def classes(self, label: Cell) -> Iterable[str]:
        """The classes that a label names."""
        return ()

    def unknown_classes(self, label: Cell, known: set[str]) -> list[str]:
        return [name for name in self.classes(label) if name not in known and not is_missing(name)]

    @abstractmethod
    def encode(self, label: Cell, class_of: Mapping[str, int]) -> Label:
        """As it is written to the prepared data."""

    @abstractmethod
    def problems(self, split: str, labels: Counter[Cell], whole: bool) -> list[str]:
        """What is wrong with the first labels of a split, with how often each occurs; `whole`: these are all."""

    @abstractmethod
    def raw_type(self) -> pyarrow.DataType:
        """Of what `parse` returns."""

    @abstractmethod
    def prepared_type(self) -> pyarrow.DataType:
        """Of what `encode` returns: a whole number, a list of these or a number."""

    missing: int | None = None  # stands in the prepared data where there is no label

    # --- for `problems`

    def none_given(self, split: str, given: bool, whole: bool) -> list[str]:
        if given or split == "test" or not whole:  # a test set may come without labels
            return []
        return [f"data.label: no row of {split} has a value in column {self.data.label!r}. Name the right column."]

    def not_listed(self, split: str, given: Counter[str], total: int) -> list[str]:
        if self.data.labels is None:
            return []
        unknown = Counter({label: n for label, n in given.items() if label not in self.data.labels})
        if sum(unknown.values()) <= RARE * total:
            return []
        known = ", ".join(map(repr, self.data.labels))
        return [
            f"data.labels: {split} has labels that are not listed: {most_common(unknown, total)}. Listed are {known}. "
            "Add them, with a name for each."
        ]


class Tally(ABC, Generic[Label]):
    """Counts the labels of one split: facts for the log and for baselines, and whether there is anything to learn."""

    def __init__(self, names: list[str]):
        self.names = names

    @abstractmethod
    def add(self, label: Label) -> None: ...

    @abstractmethod
    def facts(self) -> JsonObject: ...

    @abstractmethod
    def same(self) -> str | None:
        """What the examples have in common, where all have the same label."""

    @staticmethod
    @abstractmethod
    def summary(names: list[str], facts: JsonObject) -> str:
        """The facts of a split in a line of the log."""


class Head(ABC):
    """Loss, metrics and predictions from a model's logits.

    Every loss is a row for each example. Sums may have any shape; they are added over all batches and processes in double precision.
    """

    problem_type: str  # as transformers calls it
    metrics: Mapping[str, str]  # and which way each is better

    @abstractmethod
    def model_fields(self, label_names: list[str]) -> JsonObject:
        """Fields of a transformers configuration."""

    @abstractmethod
    def losses(self, logits: Tensor, labels: Tensor) -> Tensor: ...

    @abstractmethod
    def sums(self, logits: Tensor, labels: Tensor) -> Sums:
        """What the metrics are computed from, besides the `loss` and the `count` of examples."""

    @abstractmethod
    def measure(self, sums: Sums) -> dict[str, float]: ...

    @abstractmethod
    def predict(self, logits: Tensor) -> dict[str, Tensor]: ...


class Report(ABC):
    """What an evaluation says about predictions beyond the task's own metrics."""

    def __init__(self, facts: JsonObject):
        self.names: list[str] = facts["label_names"]
        self.train: JsonObject = facts.get("splits", {}).get("train", {})

    @abstractmethod
    def fits(self, rows: Rows) -> bool:
        """Whether the task predicts what belongs to this kind of label, and not something of its own."""

    @abstractmethod
    def labels(self, column: list[Json]) -> np.ndarray:
        """The labels of the prepared data; a row for each example."""

    @abstractmethod
    def known(self, labels: np.ndarray) -> np.ndarray:
        """Of each example, whether it has a label."""

    def score(self, labels: np.ndarray, rows: Rows, confidence: float, bins: int) -> JsonObject:
        return {}

    def baselines(self, labels: np.ndarray) -> dict[str, JsonObject]:
        """What constant answers would have got: the most that is possible without reading the text."""
        return {}

    @abstractmethod
    def columns(self, labels: np.ndarray, rows: Rows) -> dict[str, list[str]]:
        """Of the table of predictions."""

    @classmethod
    def panels(cls, results: JsonObject) -> list[Panel]:
        """Of the picture that shows where the model errs; none: the picture lists the metrics."""
        return []


@dataclass
class Panel:
    draw: Callable[[Axes, JsonObject, np.ndarray, Rows], None]  # given the results, and labels and rows of the labelled examples
    width: float = 5.0
    height: float = 4.6


@dataclass(frozen=True)
class LabelKind:
    name: str  # the value of `data.label_kind`
    parser: type[Parser[Any, Any]]  # each kind has cells and labels of its own type
    tally: type[Tally[Any]]
    head: Head
    report: type[Report]
    has_classes: bool = True  # whether `data.labels` may name classes
    mlflow_type: str = "long"  # of a label, in the schema of a data set
    served: bool = False  # whether tracking/served_classifier.py can answer with such a label


def most_common(labels: Counter[str], total: int) -> str:
    return ", ".join(f"{label!r} ({n} of {total} rows)" for label, n in itertools.islice(labels.most_common(), 5))


def drawable(name: object, most: int = 100) -> str:
    """A name on one line: without what cannot be drawn, and cut where there would be no room for a picture beside it."""
    line = " ".join("".join(character if character.isprintable() else " " for character in str(name)).split())
    return line if len(line) <= most else line[: most - 1] + "…"


BLUE, GREY, MOST_CHARACTERS = "#1f5fa8", "#767676", 40  # in pictures
