"""What the cells of the label column say, by `data.label_kind`: one class, several classes, or a number."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from snaketrain.config.schema import Data
from snaketrain.data.cells import as_text
from snaketrain.data.sources.data_issues import RARE

# PERHAPS is a label like others, unless a whole split says so: that is how labels of a test set are withheld
GOOD, MISSING, UNKNOWN, PERHAPS = 0, 1, 2, 3


def is_missing(label: str) -> bool:
    """The hub's test sets have -1 where a label is withheld; where -1 is a class, it is known as one before this is asked."""
    return label in ("", "-1")


class OneClass:
    """A cell is the name of a class."""

    oddity = "unknown_label"  # what a row with an unusable label is counted as

    def __init__(self, data: Data):
        self.data = data

    def read(self, cell: Any) -> str:
        return as_text(cell)

    def state(self, label: str, known: set[str] | None) -> int:
        """`known` are the labels that count; None: every label that occurs."""
        if label in known if known is not None else label:
            return GOOD
        return MISSING if is_missing(label) else UNKNOWN

    def names(self, label: str) -> Iterable[str]:
        return (label,)

    def strangers(self, label: Any, known: set[str]) -> list[str]:
        """Classes that are none of those `known`."""
        return [name for name in self.names(label) if name not in known and not is_missing(name)]

    def encoded(self, label: str, class_of: dict[str, int]) -> Any:
        """As it stands in the prepared data."""
        return class_of[label]

    def problems(self, split: str, labels: Counter, whole: bool) -> list[str]:
        """What is wrong with the first labels of a split, with how often each occurs; `whole`: these are all."""
        listed = self.data.labels
        given = Counter({label: n for label, n in labels.items() if label in (listed or {}) or not is_missing(label)})
        if listed is None and split == "train":
            given = Counter({label: n for label, n in labels.items() if label})
        if problems := _none(self.data, split, bool(given), whole) or _not_listed(self.data, split, given, labels.total()):
            return problems
        classes = {listed[label] for label in given if label in listed} if listed else set(given)
        if split == "train" and whole and len(classes) == 1:
            return [f"data.label: all rows of train are of one class, {classes.pop()!r}. Check `label`, `labels` and `where`."]
        return []


class SeveralClasses(OneClass):
    """A cell holds the names of any number of classes: a list, or a text with a separator; an empty one is of no class."""

    def read(self, cell: Any) -> tuple[str, ...] | None:
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return None
        parts = cell if isinstance(cell, list) else (cell if isinstance(cell, str) else as_text(cell)).split(self.data.label_separator)
        return tuple(dict.fromkeys(name for name in map(as_text, parts) if name))

    def state(self, label: tuple[str, ...] | None, known: set[str] | None) -> int:
        if not label:
            return MISSING if label is None else PERHAPS
        if known is None or known.issuperset(label):
            return GOOD
        return MISSING if all(map(is_missing, label)) else UNKNOWN

    def names(self, label: tuple[str, ...] | None) -> Iterable[str]:
        return label or ()

    def encoded(self, label: tuple[str, ...], class_of: dict[str, int]) -> Any:
        return sorted({class_of[name] for name in label})

    def problems(self, split: str, labels: Counter, whole: bool) -> list[str]:
        given: Counter[str] = Counter()
        for names, n in labels.items():
            given.update({name: n for name in names or () if name in (self.data.labels or {}) or not is_missing(name)})
        if problems := _none(self.data, split, bool(given), whole) or _not_listed(self.data, split, given, labels.total()):
            return problems
        if split == "train" and whole and len({frozenset(names) for names in labels if names is not None}) == 1:
            every = ", ".join(given)
            return [f"data.label: all rows of train have the same classes, {every}: there is nothing to learn. Check `label` and `where`."]
        return []


class Number(OneClass):
    """A cell is a number to be predicted."""

    oddity = "not_a_number"

    def read(self, cell: Any) -> float | str | None:
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
        return PERHAPS if label == -1 else GOOD

    def names(self, label: float | str | None) -> Iterable[str]:
        return ()

    def encoded(self, label: float, class_of: dict[str, int]) -> Any:
        return label

    def problems(self, split: str, labels: Counter, whole: bool) -> list[str]:
        numbers = {label for label in labels if isinstance(label, float)}
        words = Counter({label: n for label, n in labels.items() if isinstance(label, str)})
        if words.total() > RARE * labels.total():
            return [
                f"data.label: {split} has labels that are not numbers: {_shown(words, labels.total())}. Name another column, "
                "or set `label_kind: class`."
            ]
        if problems := _none(self.data, split, bool(numbers), whole):
            return problems
        if split == "train" and whole and len(numbers) == 1:
            return [f"data.label: all rows of train have the number {numbers.pop():g}: there is nothing to learn. Name the right column."]
        return []


KINDS = {"class": OneClass, "classes": SeveralClasses, "number": Number}


def label_kind(data: Data) -> OneClass:
    return KINDS[data.label_kind](data)


def _none(data: Data, split: str, given: bool, whole: bool) -> list[str]:
    if given or split == "test" or not whole:  # a test set may come without labels
        return []
    return [f"data.label: no row of {split} has a value in column {data.label!r}. Name the right column."]


def _not_listed(data: Data, split: str, given: Counter[str], total: int) -> list[str]:
    if data.labels is None:
        return []
    unknown = Counter({label: n for label, n in given.items() if label not in data.labels})
    if sum(unknown.values()) <= RARE * total:
        return []
    known = ", ".join(map(repr, data.labels))
    return [
        f"data.labels: {split} has labels that are not listed: {_shown(unknown, total)}. Listed are {known}. Add them, with a name for each."
    ]


def _shown(labels: Counter[str], total: int) -> str:
    return ", ".join(f"{label!r} ({n} of {total} rows)" for label, n in itertools.islice(labels.most_common(), 5))
