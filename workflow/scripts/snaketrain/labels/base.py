"""The parts of a label kind. A kind is one file in this folder; `data.label_kind` names it.

The names of its classes end in `Parser`, `Tally`, `Head` and `Report`, and code digests rely on that: preparing the data depends
on the first two, training on `Head`, and evaluation on `Head` and `Report`, so that a changed plot does not retrain anything.

Every job imports these files to check the configuration, so torch, numpy, pyarrow and scikit-learn are imported where they are used.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from matplotlib.axes import Axes
    from pandas import DataFrame
    from tokenizers import Tokenizer as LibraryTokenizer
    from torch import Tensor

    from snaketrain.config.schema import Data
    from snaketrain.config.schema.tasks import TextClassificationSettings
    from snaketrain.data.tokenizer import BatchTokenizer
    from snaketrain.runtime.strict_json import Json, JsonObject

    Rows = dict[str, np.ndarray]  # what a task predicts, by name; a row for each example
    Sums = dict[str, Tensor]
    Losses = Callable[[Tensor, Tensor], Tensor]  # a loss for each example, from logits and labels
    ClassCounts = Callable[[], tuple[list[int], int]]  # examples of each class in the training data, and of all

Cell = TypeVar("Cell")  # what is read from a cell of the raw data
Label = TypeVar("Label")  # as in the prepared data

RARE = 0.01  # a larger share of unusable rows is an error in the file or the settings; a smaller one is dropped and counted
WHOLE_NUMBER = re.compile(r"-?\d+\.0+")

# WITHHELD is an ordinary label, unless all labels of a split are: that is how test sets withhold their labels
VALID, MISSING, UNKNOWN, WITHHELD = 0, 1, 2, 3


class NotText(ValueError):
    """A cell with a value that cannot be written as text."""


def as_text(value: object) -> str:
    """A value as a text file would contain it, so that 1, 1.0, "1", "1.0" and " 1" are the same label; a missing one is ""."""
    if isinstance(value, str):
        # pandas writes 1 as 1.0 where the column also has empty cells
        text = value.strip()
        return text.partition(".")[0] if "." in text and WHOLE_NUMBER.fullmatch(text) else text
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list | tuple | bytes):
        kind = "an object" if isinstance(value, dict) else "bytes" if isinstance(value, bytes) else "a list"
        raise NotText(f"{kind}, {str(value)[:60]}")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else as_text(str(value))


def is_missing(label: str) -> bool:
    """Test sets of the hub have -1 for a withheld label; if -1 is a class, callers have checked for that before."""
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
        """VALID, MISSING, UNKNOWN or WITHHELD. `known`: the labels of the classes; None: every label that occurs."""

    def classes(self, label: Cell) -> Iterable[str]:
        """The classes that a label names."""
        return ()

    def unknown_classes(self, label: Cell, known: set[str]) -> list[str]:
        return [name for name in self.classes(label) if name not in known and not is_missing(name)]

    @abstractmethod
    def encode(self, label: Cell, class_of: Mapping[str, int]) -> Label:
        """The label as it is written to the prepared data."""

    # --- for a kind whose examples are more than texts

    sequence = ""  # what an example has one or several of, each of up to `data.max_length` tokens
    text = staticmethod(as_text)  # a cell of a column of `data.text` as it is written to the prepared data
    token_lists: tuple[
        str, ...
    ] = ()  # columns that its tokenizer makes beside the tokens; labels are then lists in order, not sets of classes

    def parse_beside(self, cell: object, texts: tuple[str, ...]) -> Cell:
        """`parse`, where the texts of the row say what the label can be."""
        return self.parse(cell)

    def oddity(self, label: Cell, texts: tuple[str, ...]) -> str | None:
        """What looks wrong with a usable label; it is counted."""
        return None

    def cut_off(self, rows: pyarrow.RecordBatch) -> list[int]:
        """The labelled rows, as read and encoded, whose label lies in what the tokenizer has cut off; they are used, and counted."""
        return []

    def tokenizer(self, library: LibraryTokenizer) -> BatchTokenizer | None:
        """How the texts are encoded; None: as any text."""
        return None

    # of what `parse` and `encode` return, as pyarrow calls them, and a list of it with [] behind
    raw: str
    prepared: str
    missing: int | None = None  # in the prepared data instead of a label


class Tally(ABC, Generic[Label]):
    """Counts the labels of one split: facts for the log and for baselines, and whether there is anything to learn."""

    def __init__(self, names: list[str]):
        self.names = names

    @abstractmethod
    def add(self, label: Label) -> None: ...

    @abstractmethod
    def state(self) -> Json:
        """What `merge` needs of it: files are counted by themselves, and none is read again to count all of them."""

    @abstractmethod
    def merge(self, state: Json) -> None:
        """Add what another tally has counted."""

    @abstractmethod
    def facts(self) -> JsonObject: ...

    @abstractmethod
    def same(self) -> str | None:
        """A description of the label that all examples have; None if they differ."""

    @staticmethod
    @abstractmethod
    def summary(names: list[str], facts: JsonObject) -> str:
        """The facts of a split as a line of the log."""


class Head(ABC):
    """Loss, metrics and predictions from a model's logits.

    Losses have one row per example. Sums may have any shape; they are added over all batches and processes in double precision.
    """

    problem_type: str  # as transformers calls it
    metrics: Mapping[str, str]  # with `min` or `max`
    of_rows: Mapping[str, str] = {}  # of these, classes of metrics that are computed from all rows instead of from sums

    @abstractmethod
    def model_fields(self, label_names: list[str]) -> JsonObject:
        """Fields of a transformers configuration."""

    @abstractmethod
    def losses(self, logits: Tensor, labels: Tensor) -> Tensor: ...

    def training_losses(self, settings: TextClassificationSettings, names: list[str], counts: ClassCounts) -> Losses:
        """What is minimised, from logits and labels; `losses`, which evaluations report, unless a setting says otherwise."""
        if given := [name for name, value in settings if value and name != "loss"]:
            raise SystemExit(f"train.task.arguments: {', '.join(given)}: is for classes, and this label kind has none. Remove it.")
        return self.losses

    @abstractmethod
    def sums(self, logits: Tensor, labels: Tensor) -> Sums:
        """What the metrics are computed from, besides the `loss` and the `count` of examples."""

    @abstractmethod
    def measure(self, sums: Sums) -> dict[str, float]: ...

    @abstractmethod
    def predict(self, logits: Tensor) -> dict[str, Tensor]: ...

    def metric_inputs(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """What the metrics of the configuration compare: predictions, such as probabilities, and labels."""
        return logits, labels


class Report(ABC):
    """What an evaluation reports about predictions besides the task's own metrics."""

    # metrics as functions of the examples' weights, from the table of predictions, for the verdict's bootstrap
    of_weights: Mapping[str, Callable[[DataFrame], Callable[[np.ndarray], float]]] = {}
    smallest_share = 1e-7  # of a class in a constant answer, so that one that never occurs gets a finite logit

    def __init__(self, facts: JsonObject):
        self.names: list[str] = facts["label_names"]
        self.train: JsonObject = facts.get("splits", {}).get("train", {})

    @abstractmethod
    def fits(self, rows: Rows) -> bool:
        """Whether the task's predictions belong to this label kind, rather than being of another form."""

    @abstractmethod
    def labels(self, column: list[Json]) -> np.ndarray:
        """The labels of the prepared data; a row for each example."""

    @abstractmethod
    def known(self, labels: np.ndarray) -> np.ndarray:
        """Whether each example has a label."""

    def score(self, labels: np.ndarray, rows: Rows, confidence: float, bins: int) -> JsonObject:
        return {}

    def baselines(self, labels: np.ndarray) -> dict[str, JsonObject]:
        """The metrics of constant answers, which any model should beat."""
        return {}

    def constants(self, labels: np.ndarray) -> dict[str, np.ndarray]:
        """The logits of those of the constant answers that are also measured by the other metrics of a task."""
        return {}

    @staticmethod
    def wilson_interval(right: int, examples: int, confidence: float) -> list[float]:
        """Of a share. It stays within 0 and 1, and holds for few examples."""
        share, z = right / examples, NormalDist().inv_cdf((1 + confidence) / 2)
        centre, half = share + z**2 / (2 * examples), z * math.sqrt(share * (1 - share) / examples + (z / (2 * examples)) ** 2)
        low, high = ((centre + sign * half) / (1 + z**2 / examples) for sign in (-1, 1))
        return [low if right else 0.0, high if right < examples else 1.0]

    def left_out(self, scored: bool) -> str:
        """What the files leave out, for the log; empty if nothing. `scored`: there are results besides the predictions."""
        return ""

    @abstractmethod
    def columns(self, labels: np.ndarray, rows: Rows) -> dict[str, list[str]]:
        """Columns of the table of predictions."""

    @classmethod
    def panels(cls, results: JsonObject) -> list[Panel]:
        """Panels of the figure that shows the model's errors; none: the figure lists the metrics."""
        return []


@dataclass
class Panel:
    draw: Callable[[Axes, JsonObject, np.ndarray, Rows], None]  # takes the results, and labels and rows of the labelled examples
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
    served: bool = False  # whether a label and its probability are an answer, as of a model that MLflow serves


def drawable(name: object, most: int = 100) -> str:
    """A name on one line, without unprintable characters, and cut to a length that leaves room for the plot."""
    line = " ".join("".join(character if character.isprintable() else " " for character in str(name)).split())
    return line if len(line) <= most else line[: most - 1] + "…"


BLUE, GREY, MOST_CHARACTERS = "C0", "C6", 40  # in plots: the first and the last colour of their theme
