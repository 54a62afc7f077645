"""The rows of a split's raw files, and a quick look at them before any job starts."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from snaketrain.config.errors import nearest
from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData, DataIssues, as_messages, first_of
from snaketrain.data.formats import FORMATS, WHOLE, FileSlice, first_records, format_of, read_columns, read_rows, refuse_other_compression
from snaketrain.labels import label_kind
from snaketrain.labels.base import NotText, as_text
from snaketrain.runtime.strict_json import JsonObject

PREVIEW_ROWS, PREVIEW_SECONDS, PREVIEW_FILES = 20_000, 1.5, 50

T = TypeVar("T")


class RawRow(NamedTuple):
    file: str
    line: int
    values: JsonObject

    @property
    def location(self) -> str:
        return f"{self.file}, line {self.line}"


def rows(
    files: list[Path], data: Data, issues: DataIssues, root: Path | None = None, further: Collection[str] = (),
    file_slice: FileSlice = WHOLE, all_rows: bool = False,
) -> Iterator[RawRow]:  # fmt: skip
    """The rows that match `data.where`, or `all_rows`, file by file; messages name the files relative to `root`.

    `further`: other columns to read; `file_slice`: of each file.
    """
    needed = {*data.text_columns.values(), *data.where, *further} | ({data.label} if data.label else set())
    for file, kind in readable(files, data):
        name = str(file.relative_to(root)) if root else str(file)
        line = 0
        for line, values in read_rows(file, kind, data, issues, name, needed, file_slice):
            row = RawRow(name, line, values)
            if all_rows or _matches(data, row):
                yield row
        if not line and file_slice == WHOLE:
            issues.add("empty_file", name)


def _matches(data: Data, row: RawRow) -> bool:
    return all(cell("where", row, column, as_text) == value for column, value in data.where.items())


def cell(setting: str, row: RawRow, column: str, parse: Callable[[object], T]) -> T:
    """The parsed value of a row in a column that `data.SETTING` names."""
    try:
        found = parse(row.values.get(column))
        if setting == "label":
            for name in found if isinstance(found, list | tuple) else [found]:
                str(name).encode()
        return found
    except UnicodeEncodeError:
        raise BadData(
            f"data.{setting}: {row.location} has in column {column!r} half of a surrogate pair, which is no character. Correct the value."
        ) from None
    except NotText as error:
        advice = "Name another column, or write the part you need into a column of its own."
        if setting == "label" and isinstance(row.values[column], list):
            advice = "If it names classes, set `data.label_kind: classes`."
        if setting == "messages":
            advice = "Write a list of objects, each with a text as its `role` and one as its `content`."
        raise BadData(f"data.{setting}: {row.location} has in column {column!r} {error}. {advice}") from None
    except (ValueError, OverflowError, TypeError) as error:
        raise BadData(f"data.{setting}: {row.location}: column {column!r} cannot be read ({error}). Correct the value.") from error


def readable(files: list[Path], data: Data) -> list[tuple[Path, str]]:
    """The files whose format is known, with the format; a folder may hold others, such as a README."""
    for file in files:
        refuse_other_compression(file, data.format)
    found = [(file, kind) for file in files if (kind := format_of(file, data.format))]
    if not found:
        names = ", ".join(file.name for file in files[:8])
        raise BadData(
            f"data.format: cannot be inferred from the names of {names}. Known extensions: {' '.join(FORMATS)}. Set it, e.g. `format: csv`."
        )
    return found


def report_unread(files: list[Path], data: Data, setting: str) -> None:
    """Print which files are passed over; `setting`: what names them."""
    if names := [repr(file.name) for file in files if not format_of(file, data.format)]:
        unread = f"{len(names)} of {len(files)} files are not read, since their names do not tell a known format"
        print(f"{setting}: {unread}: {first_of(names)}", flush=True)


def check(data: Data, files: dict[str, list[Path]], needs_labels: bool = False) -> list[str]:
    """All problems of the data that can be found within seconds; `files` by split, as far as they exist. `needs_labels`: the test set does, too."""
    if unknown := _unknown_encoding(data):
        return unknown
    problems: list[str] = []
    known = set(data.labels) if data.labels is not None else None
    for split in sorted(files, key=("train", "dev", "test").index):
        try:
            found = check_columns(data, split, readable(files[split], data), needs_labels=needs_labels)
            if not found:
                found, known = _preview(data, split, files[split], known)
            problems += found
        except BadData as error:
            problems.append(str(error) if str(error).startswith("data.") else f"data.{split}: {error}")
    return problems


def _unknown_encoding(data: Data) -> list[str]:
    try:
        "".encode(data.encoding)
    except LookupError:
        return [f"data.encoding: Python knows no encoding {data.encoding!r}. Usual ones: utf-8, latin-1, cp1252, utf-16."]
    return []


def check_columns(
    data: Data, split: str, files: list[tuple[Path, str]], most: int = PREVIEW_FILES, needs_labels: bool = False
) -> list[str]:
    needed = [(f"data.{data.setting_of(name)}", column) for name, column in data.text_columns.items()] + [
        ("data.where", column) for column in data.where
    ]
    if data.label and (needs_labels or split != "test"):  # a test set may come without labels
        needed.append(("data.label", data.label))
    for file, kind in files[:most]:
        columns = read_columns(file, kind, data, str(file))
        if columns is None:
            continue
        missing = [(setting, column) for setting, column in needed if column not in columns]
        problems = [f"{setting}: {split} file {file} has no column {column!r}. {_known(column, columns)}" for setting, column in missing]
        if problems and kind == "text" and data.label:
            problems[-1] += " Plain text has no labels: set `data.label: null`, or another `data.format`."
        if data.columns and (problem := _check_width(data.columns, data.encoding, split, file, kind)):
            return [problem]  # columns are missing as a consequence
        if data.text_unit != "line" and kind != "text":
            problems.append(f"data.text_unit: is for plain text, but {split} file {file} is {kind}. Remove it.")
        if problems:
            return problems  # the split's other files will have the same ones
    return []


def check_inputs(data: Data, files: list[Path], further: Collection[str] = ()) -> list[str]:
    """Problems of unlabelled files that can be found within seconds: a format that is not known, a column that is missing."""
    if unknown := _unknown_encoding(data):
        return unknown
    try:
        for file, kind in readable(files, data)[:PREVIEW_FILES]:
            columns = read_columns(file, kind, data, str(file))
            for column in [*data.text, *further]:
                if columns is not None and column not in columns:
                    return [f"{file} has no column {column!r}. {_known(column, columns)}"]
            if data.columns and (problem := _check_width(data.columns, data.encoding, "input", file, kind)):
                return [problem]
    except (BadData, LookupError) as error:
        return [str(error)]
    return []


def _check_width(columns: list[str], encoding: str, split: str, file: Path, kind: str) -> str | None:
    if kind not in ("csv", "tsv"):
        return None
    fields = next((fields for _, fields in first_records(file, kind, encoding, str(file))), columns)
    if len(fields) == len(columns):
        return None
    return f"data.columns: names {len(columns)} columns, but the first line of {split} file {file} has {len(fields)}: {fields}."


def _preview(data: Data, split: str, files: list[Path], known: set[str] | None) -> tuple[list[str], set[str] | None]:
    """Problems of the first rows of a split, and the classes; if these are None, those in train once all its rows were read."""
    parser, labels = label_kind(data.label_kind).parser(data), Counter[object]()
    values: dict[str, Counter[str]] = {column: Counter() for column in data.where}
    kept, whole, until = 0, True, time.monotonic() + PREVIEW_SECONDS
    # rows that `where` drops count towards the limits: they take time as well
    for number, row in enumerate(rows(files, data, DataIssues(), all_rows=True)):
        if number >= PREVIEW_ROWS or (number % 100 == 99 and time.monotonic() > until):
            whole = False
            break
        for column, seen in values.items():
            seen[cell("where", row, column, as_text)] += 1
        if not _matches(data, row):
            continue
        kept += 1
        for name, column in data.text_columns.items():
            setting = data.setting_of(name)
            if setting == "messages" or not isinstance(row.values.get(column), str):
                cell(setting, row, column, parser_of(setting))
        if data.label:
            label = cell("label", row, data.label, parser.parse)
            labels[label] += 1
            if split != "train" and known is not None:
                refuse_unknown_classes(data, split, row.location, parser.unknown_classes(label, known), known)
    if kept == 0:
        return _nothing(data, split, files, values) if whole else [], known
    if not data.label:
        return [], known
    if split == "train" and known is None and whole:
        known = {name for label in labels for name in parser.classes(label) if name}
    return parser.problems(split, labels, whole), known


def parser_of(setting: str) -> Callable[[object], str]:
    return as_messages if setting == "messages" else as_text


def refuse_unknown_classes(data: Data, split: str, location: str, unknown: list[str], known: set[str]) -> None:
    """Refuse rows of classes that cannot be predicted, which would be missing from the metrics."""
    if not unknown:
        return
    names = ", ".join(map(repr, sorted(known)[:20]))
    if data.labels is not None:
        raise BadData(f"data.labels: {split} has a label that is not listed, {unknown[0]!r} ({location}). Listed are {names}. Add it.")
    raise BadData(
        f"data.{split}: {location} is of class {unknown[0]!r}, which no training row has. Training rows have {names}. "
        "Correct the label, or add training rows of that class."
    )


def _nothing(data: Data, split: str, files: list[Path], values_seen: dict[str, Counter[str]]) -> list[str]:
    if not any(values_seen.values()):
        return [f"data.{split}: no rows in {', '.join(map(str, files[:3]))}. Is it the right file, and is it complete?"]
    return [
        f"data.where: no row of {split} has {column!r} = {value!r}. {_known(value, [v for v, _ in values_seen[column].most_common(20)])}"
        for column, value in data.where.items()
        if value not in values_seen[column]
    ] or [f"data.where: no row of {split} meets all of its conditions at once. Drop one of them."]


def _known(name: str, names: list[str]) -> str:
    return f"It has: {first_of(names, 20)}{nearest(name, names)}"
