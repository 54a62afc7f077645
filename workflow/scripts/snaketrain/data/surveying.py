"""The first pass over the raw files: which rows can be used, which classes there are, which texts occur twice.

Of every row with a text it keeps nine bytes: a hash of the text and whether the label is usable.
"""

import hashlib
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from tqdm import tqdm

from snaketrain.data.formats import BadData
from snaketrain.data.labels import GOOD, MISSING, PERHAPS, UNKNOWN, as_text, label_kind
from snaketrain.data.oddities import Oddities
from snaketrain.data.reading import Row, rows
from snaketrain.settings import Data

MOST_CLASSES = 10_000


class Example(NamedTuple):
    file: str
    line: int
    texts: tuple[str, ...]
    label: Any  # as `label_kind` reads it; without a label column ""

    @property
    def place(self) -> str:
        return f"{self.file}, line {self.line}"


@dataclass
class Survey:
    """What is known of the rows with a text of one source, in their order."""

    hashes: numpy.ndarray
    labels: numpy.ndarray  # GOOD, MISSING or UNKNOWN
    label_counts: Counter[str] = field(default_factory=Counter)
    rows: int = 0

    @property
    def labelled(self) -> bool:
        return bool((self.labels != MISSING).any())

    @property
    def usable(self) -> numpy.ndarray:
        return self.labels == GOOD if self.labelled else numpy.ones(len(self.labels), bool)


def examples(files: list[Path], data: Data, odd: Oddities, root: Path) -> Iterator[Example]:
    """The rows with a text. Both passes use it, so that the n-th of one is the n-th of the other."""
    kind = label_kind(data)
    for row in rows(files, data, odd, root):
        texts = tuple([_decodable(row, column, odd) for column in data.text])
        if all(map(str.strip, texts)):
            yield Example(row.file, row.line, texts, kind.read(row.values.get(data.label)) if data.label else "")
        else:
            odd.add("empty_text", row.place)


def survey(split: str, files: list[Path], data: Data, known: set[str] | None, odd: Oddities, root: Path) -> Survey:
    """Read one source through. `known` are the labels that count; None: every label that occurs."""
    hashes, labels, counts = array("Q"), array("b"), Counter()
    here, kind = Oddities(), label_kind(data)
    for example in progress(examples(files, data, here, root), f"read {split}"):
        state = kind.state(example.label, known) if data.label else GOOD
        if state in (MISSING, UNKNOWN):
            oddity = "missing_label" if state == MISSING else kind.oddity
            here.add(oddity, example.place, f"{example.label!r} {example.texts[0]}".strip())
        elif data.label:
            counts.update(kind.names(example.label))
            if len(counts) > MOST_CLASSES:
                raise BadData(
                    f"data.label: {split} has more than {MOST_CLASSES} different values in column {data.label!r}: "
                    "that is no class label. Name another column, or `label: null` for language modelling."
                )
        hashes.append(text_hash(example.texts))
        labels.append(state)
    states = numpy.array(labels, numpy.int8)
    withheld = split != "train" and not (states == GOOD).any()
    states[states == PERHAPS] = MISSING if withheld else GOOD
    found = Survey(numpy.array(hashes, numpy.uint64), states, counts, len(labels) + here.counts["empty_text"])
    if not found.usable.any():
        reasons = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in here.counts.items()) or "none kept by `where`"
        raise BadData(
            f"data.{split}: no usable example among its {found.rows} rows ({reasons}). Check `text`, `label`, `labels` and `where`."
        )
    # in an unlabelled test set the missing labels are nothing odd
    odd.merge(here, without=() if found.labelled else ("missing_label",))
    return found


def progress(steps: Iterable, what: str, total: int | None = None) -> Iterable:
    """Tell on stderr how far it is, once it takes more than a moment; seldom in log files, where every update is a line."""
    return tqdm(steps, desc=what, total=total, unit=" rows", mininterval=0.5 if sys.stderr.isatty() else 10, delay=2, file=sys.stderr)


def text_hash(texts: tuple[str, ...]) -> int:
    """Equal for texts that differ in case and spacing only."""
    normal = "\t".join(" ".join(text.lower().split()) for text in texts)
    return int.from_bytes(hashlib.blake2b(normal.encode(), digest_size=8).digest(), "little")


def classes(data: Data, train: Survey) -> tuple[list[str], dict[str, int]]:
    """The names of the classes in order, and the class of each label as it stands in the files."""
    if data.label is None or data.label_kind == "number":
        return [], {}
    if data.labels is not None:
        names = list(dict.fromkeys(data.labels.values()))  # two labels may share a name: one class
        return names, {label: names.index(name) for label, name in data.labels.items()}
    names = sorted(train.label_counts, key=_numbers_by_size)
    return names, {name: number for number, name in enumerate(names)}


def _numbers_by_size(label: str) -> tuple:
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label


def _decodable(row: Row, column: str, odd: Oddities) -> str:
    """JSON can express halves of characters, which neither UTF-8 nor a tokenizer can take."""
    value = row.values.get(column)
    text = value if isinstance(value, str) else as_text(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-8", "replace").decode()
        odd.add("bad_encoding", row.place, text)
    return text
