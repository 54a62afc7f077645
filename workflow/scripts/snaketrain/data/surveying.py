"""The rows of the raw files as examples: which are usable, which classes occur, which texts occur twice. And a look at the first of them before any job.

A survey keeps a byte per row with a text, the state of its label, and where repetitions are looked for 8 bytes more, a hash of the text.
"""

from __future__ import annotations

import math
import time
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData, DataIssues, is_answered
from snaketrain.data.reading import RawRow, cell, check_columns, it_has, matches, parser_of, readable, rows
from snaketrain.labels import label_kind
from snaketrain.labels.base import MISSING, RARE, UNKNOWN, VALID, WITHHELD, Tally, as_text
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    import numpy

MOST_CLASSES = 10_000
WITHOUT_WIDTH = dict.fromkeys(map(ord, "\u200b\u2060\ufeff"))  # characters that show nothing, and that `str.split` keeps
PREVIEW_ROWS, PREVIEW_SECONDS = 20_000, 1.5


class Example(NamedTuple):
    file: str
    line: int
    texts: tuple[str, ...]
    label: object  # as the parser of `data.label_kind` reads it; None without a label column, or if it is unusable
    slices: tuple[str, ...] = ()

    @property
    def location(self) -> str:
        return f"{self.file}, line {self.line}"


def as_slice(value: object) -> str:
    return "" if value is None else as_text(value)


@dataclass
class Survey:
    """What is known of one source's rows with a text, in order."""

    hashes: numpy.ndarray
    labels: numpy.ndarray  # VALID, MISSING or UNKNOWN
    label_counts: Counter[str]
    rows: int

    @property
    def labelled(self) -> bool:
        return bool((self.labels != MISSING).any())

    @property
    def usable(self) -> numpy.ndarray:
        return (self.labels == VALID) | (not self.labelled)


class Surveyor:
    """Surveys one source's examples as they are read. `known`: the labels of the classes; None: every label that occurs."""

    def __init__(self, source: str, data: Data, known: set[str] | None, hashed: bool = False):
        """`hashed`: keep a hash of each text, for a survey that looks for repetitions."""
        self.source, self.data, self.known, self.hashed = source, data, known, hashed
        self.parser = label_kind(data.label_kind).parser(data)
        self.hashes, self.labels = array("q"), array("b")
        self.label_counts: Counter[str] = Counter()
        self.first_locations: dict[str, str] = {}
        self.in_first_lines: Counter[str] = Counter()  # labels in the first line of a file
        self.issues = DataIssues()

    def examples(self, rows: Iterable[RawRow]) -> Iterator[Example]:
        """The rows with a text, without unusable labels."""
        for example in self._with_text(rows):
            state = self._state(example)
            if state in (MISSING, UNKNOWN):
                kind = "missing_label" if state == MISSING else self.parser.data_issue
                self.issues.add(kind, example.location, f"{example.label!r} {example.texts[0]}".strip())
                example = example._replace(label=None)
            elif self.data.label:
                self._count(example)
                if odd := self.parser.oddity(example.label, example.texts):
                    self.issues.add("odd_label", example.location, odd)
            if self.hashed:
                self.hashes.append(text_hash(example.texts))
            self.labels.append(state)
            yield example

    def _with_text(self, rows: Iterable[RawRow]) -> Iterator[Example]:
        data, issues, parse = self.data, self.issues, parser_of(self.data)
        for row in rows:
            texts = tuple([decodable(row, data.setting_of(name), column, issues, parse) for name, column in data.text_columns.items()])
            if data.messages and texts[0] and not is_answered(texts[0]):
                issues.add("no_answer", row.location, texts[0])
            elif all(map(str.strip, texts)):
                parse_label = partial(self.parser.parse_beside, texts=texts)
                slices = tuple([cell("slices", row, column, as_slice) for column in data.slices])
                yield Example(row.file, row.line, texts, cell("label", row, data.label, parse_label) if data.label else None, slices)
            else:
                issues.add("empty_text", row.location)

    def survey(self, issues: DataIssues) -> Survey:
        """The result, once all examples have passed."""
        import numpy  # here: the check before any job seldom gets so far

        states = numpy.array(self.labels, numpy.int8)
        withheld = self.source != "train" and not (states == VALID).any()
        states[states == WITHHELD] = MISSING if withheld else VALID
        found = Survey(numpy.frombuffer(self.hashes, numpy.int64), states, self.label_counts, self.rows)
        self.refuse_unusable(self.rows, bool(found.usable.any()))
        if self.data.label and not found.labelled and self.source != "test":  # a test set may come without labels
            raise BadData(f"data.label: no row of {self.source} has a value in column {self.data.label!r}. Name the right column.")
        if self.source == "train" and self.data.labels is None:
            self.refuse_headers()
            self.report_single_rows()
            self.report_alike()
        # in an unlabelled test set missing labels are expected
        issues.merge(self.issues, without=() if found.labelled else ("missing_label",))
        return found

    @property
    def rows(self) -> int:
        """All that were read, with those without a text."""
        return len(self.labels) + self.issues.counts["empty_text"] + self.issues.counts["no_answer"]

    def refuse_unusable(self, rows: int, any_usable: bool) -> None:
        if not any_usable:
            reasons = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in self.issues.counts.items()) or "none kept by `where`"
            raise BadData(
                f"data.{self.source}: no usable example among its {rows} rows ({reasons}). Check `text`, `label`, `labels` and `where`."
            )
        self.refuse_dropping(rows)

    def refuse_dropping(self, rows: int) -> None:
        """Refuse to drop more than a few rows for their labels."""
        kind = self.parser.data_issue
        if (count := self.issues.counts[kind]) > RARE * rows:
            setting, reason, advice = "label", "cannot be used", "name another column, set another `label_kind`"
            if kind == "unknown_label":
                setting, reason, advice = "labels", "is not listed", f"add the others to {', '.join(map(repr, self.data.labels or ()))}"
            raise BadData(
                f"data.{setting}: {count} of the {rows} rows of {self.source} have a label that {reason}, such as {self.issues.examples[kind][0]}. "
                f"Only rare ones are dropped: {advice}, or remove their rows from the files."
            )

    def report_single_rows(self) -> None:
        single = [name for name, count in self.label_counts.items() if count == 1]
        self.issues.add_all("single_row_class", len(single), [(self.first_locations[name], name) for name in single[: DataIssues.SHOWN]])

    def report_alike(self) -> None:
        first: dict[str, str] = {}
        pairs = [(first.setdefault(_normal(name), name), name) for name in self.label_counts]
        alike = [(self.first_locations[name], f"{name!a} and {other!a}") for other, name in pairs if other != name]
        self.issues.add_all("alike_classes", len(alike), alike[: DataIssues.SHOWN])

    def refuse_headers(self) -> None:
        """Detects a header with other names than `data.columns`: its labels occur only in first lines."""
        found = [name for name, count in self.in_first_lines.items() if count == self.label_counts[name]]
        if self.data.columns and found and self.label_counts.total() > self.in_first_lines.total():
            raise BadData(
                f"data.columns: is for files without a header, but {self.first_locations[found[0]]} looks like one: no other row has "
                f"its label {found[0]!r}. Remove `columns`; if the line is an ordinary row, list all classes in `data.labels`."
            )

    def _state(self, example: Example) -> int:
        if not self.data.label:
            return VALID
        state = self.parser.state(example.label, self.known)
        if state == UNKNOWN and self.source != "train" and self.known is not None:
            self.refuse_unknown_classes(example, self.known)
        return state

    def refuse_unknown_classes(self, example: Example, known: set[str]) -> None:
        """Refuse rows of classes that cannot be predicted, which would be missing from the metrics."""
        if not (unknown := self.parser.unknown_classes(example.label, known)):
            return
        names = ", ".join(map(repr, sorted(known)[:20]))
        if self.data.labels is not None:
            raise BadData(
                f"data.labels: {self.source} has a label that is not listed, {unknown[0]!r} ({example.location}). Listed are {names}. Add it."
            )
        raise BadData(
            f"data.{self.source}: {example.location} is of class {unknown[0]!r}, which no training row has. Training rows have {names}. "
            "Correct the label, or add training rows of that class."
        )

    def _count(self, example: Example) -> None:
        for name in self.parser.classes(example.label):
            if not self.label_counts[name]:
                self.first_locations[name] = example.location
            self.in_first_lines[name] += example.line == 1
            self.label_counts[name] += 1
        if len(self.label_counts) > MOST_CLASSES:
            raise BadData(
                f"data.label: {self.source} has more than {MOST_CLASSES} different values in column {self.data.label!r}: "
                "these are not classes. Name another column, or `label: null` for language modelling."
            )


def text_hash(texts: Iterable[str]) -> int:
    """Equal for texts with the same `normal_text`. It differs between processes."""
    return hash(normal_text(texts))


def normal_text(texts: Iterable[str]) -> str:
    """The same for texts that differ only in case, in spacing, or in how accented characters are composed."""
    return "\t".join([_normal(text) for text in texts])


def _normal(text: str) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFC", text.translate(WITHOUT_WIDTH))
    return " ".join(text.lower().split())


def classes(data: Data, found: Iterable[str] = ()) -> tuple[list[str], dict[str, int]]:
    """The names of the classes in order, and the number of each label's class; `found`: the labels that occur, if none are listed."""
    if data.label is None or not label_kind(data.label_kind).has_classes:
        return [], {}
    if data.labels is not None:
        names = list(dict.fromkeys(data.labels.values()))  # two labels may share a name: one class
        return names, {label: names.index(name) for label, name in data.labels.items()}
    names = sorted(found, key=_numbers_first)
    return names, {name: number for number, name in enumerate(names)}


def _numbers_first(label: str) -> tuple[int, float, str]:
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    return (1, 0.0, label) if math.isnan(number) else (0, number, label)  # a label "nan" has no place among numbers


def decodable(row: RawRow, setting: str, column: str, issues: DataIssues, parse: Callable[[object], str]) -> str:
    """JSON can contain lone surrogates, which neither UTF-8 nor a tokenizer accepts."""
    value = row.values.get(column)
    text = value if isinstance(value, str) and parse is as_text else cell(setting, row, column, parse)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-8", "replace").decode()
        issues.add("bad_encoding", row.location, text)
    return text


def check_train(examples: int, tally: Tally[Any]) -> None:
    """Refuse training data that teaches nothing."""
    if examples == 0:
        raise BadData("data.train: nothing is left to train on. Make `dev_fraction` and `test_fraction` smaller, or add data.")
    if same := tally.same():
        raise BadData(
            f"data.label: all {examples} training examples {same}: there is nothing to learn. "
            "Check `label`, `labels` and `where`, and that `limit_train` is not too small."
        )


# --- A look at the first rows before any job: they are surveyed as all will be.


def check(data: Data, files: dict[str, list[Path]], needs_labels: bool = False) -> list[str]:
    """All problems of the data that can be found within seconds; `files` by split, as far as they exist. `needs_labels`: the test set does, too."""
    problems: list[str] = []
    known = set(data.labels) if data.labels is not None else None
    for split in sorted(files, key=("train", "dev", "test", *data.train_sets_of_extras).index):
        label = [("label", data.label)] if data.label and (needs_labels or split != "test") else []
        try:
            found = check_columns(data, split, readable(files[split], data), further=label)
            if not found:
                known = _preview(data, split, files[split], known)
            problems += found
        except BadData as error:
            problems.append(str(error) if str(error).startswith("data.") else f"data.{split}: {error}")
    return list(dict.fromkeys(problems))


def _preview(data: Data, split: str, files: list[Path], known: set[str] | None) -> set[str] | None:
    """Refuse what the first rows show. Returns the classes; None: they are those of all training rows, and these were not read to their end."""
    first, surveyor = _FirstRows(data, files), Surveyor(split, data, known)
    labels = {example.label for example in surveyor.examples(first)} - {None}
    if not first.whole:
        surveyor.refuse_dropping(surveyor.rows)
        return known
    if not surveyor.rows:
        raise BadData(first.why_none(split))
    usable = int(surveyor.survey(DataIssues()).usable.sum())
    if split != "train" or not data.label:
        return known
    names, class_of = classes(data, surveyor.label_counts)
    tally = label_kind(data.label_kind).tally(names)
    for label in labels:
        tally.add(surveyor.parser.encode(label, class_of))
    check_train(usable, tally)
    return set(class_of) if known is None else known


class _FirstRows:
    """The rows that `data.where` keeps, of those that are read within a moment."""

    def __init__(self, data: Data, files: list[Path]):
        self.data, self.files, self.whole = data, files, True
        self.values: dict[str, Counter[str]] = {column: Counter() for column in data.where}

    def __iter__(self) -> Iterator[RawRow]:
        until = time.monotonic() + PREVIEW_SECONDS
        # rows that `where` drops count towards the limits: they take time as well
        for number, row in enumerate(rows(self.files, self.data, DataIssues(), all_rows=True)):
            if number >= PREVIEW_ROWS or (number % 100 == 99 and time.monotonic() > until):
                self.whole = False
                return
            for column, seen in self.values.items():
                seen[cell("where", row, column, as_text)] += 1
            if matches(self.data, row):
                yield row

    def why_none(self, split: str) -> str:
        if not any(self.values.values()):
            return f"data.{split}: no rows in {', '.join(map(str, self.files[:3]))}. Is it the right file, and is it complete?"
        for column, value in self.data.where.items():
            if value not in self.values[column]:
                known = [seen for seen, _ in self.values[column].most_common(20)]
                return f"data.where: no row of {split} has {column!r} = {value!r}. {it_has(value, known)}"
        return f"data.where: no row of {split} meets all of its conditions at once. Drop one of them."


# --- The summary of prepared data, at the end of the log of the job that prepared it.


def show(report: JsonObject) -> None:
    if "datasets" in report:
        for split, facts in report["splits"].items():
            items = "a stream" if facts.get("stream") else f"{facts['examples']:>9} items"
            print(f"  {split:5} {items} of {report['datasets'][split]['use']}: {facts.get('fields', {})}")
        return
    print(f"\n{report['name']}: " + ", ".join(f"{n} rows of {source}" for source, n in report["rows"].items()))
    tally = label_kind(report["label_kind"]).tally
    for split, facts in report["splits"].items():
        kind = "unlabelled" if not facts["labelled"] else tally.summary(report["label_names"], facts)
        mean = facts["tokens"] / max(1, facts["examples"])
        print(f"  {split:5} {facts['examples']:>9} examples, {mean:.1f} tokens on average, {facts['longest']} at most; {kind}")
    for case in report["odd"].values():
        if case["count"]:
            print(f"warning: {report['name']}: {case['count']} {case['what']}")
            for first in case["first"]:
                print(f"  {first}")
    print()
