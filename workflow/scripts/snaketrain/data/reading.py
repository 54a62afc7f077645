"""The rows of a split's raw files, and a quick look at them before any job starts."""

import difflib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from snaketrain.data.formats import FORMATS, BadData, format_of, read_columns, read_rows
from snaketrain.data.labels import as_text, label_kind
from snaketrain.data.oddities import Oddities
from snaketrain.settings import Data

LOOK_ROWS, LOOK_SECONDS, LOOK_FILES = 20_000, 1.5, 50


class Row(NamedTuple):
    file: str
    line: int
    values: dict[str, Any]

    @property
    def place(self) -> str:
        return f"{self.file}, line {self.line}"


def rows(files: list[Path], data: Data, odd: Oddities, root: Path | None = None) -> Iterator[Row]:
    """All rows that `data.where` keeps, file by file; messages name the files relative to `root`."""
    every = _every_row(files, data, odd, root)
    return (row for row in every if _keeps(data, row)) if data.where else every


def _every_row(files: list[Path], data: Data, odd: Oddities, root: Path | None = None) -> Iterator[Row]:
    needed = {*data.text, *data.where} | ({data.label} if data.label else set())
    for file in readable(files, data):
        name = str(file.relative_to(root)) if root else str(file)
        for line, values in read_rows(file, format_of(file, data.format), data.encoding, data.columns, odd, name, needed):
            yield Row(name, line, values)


def _keeps(data: Data, row: Row) -> bool:
    return all(as_text(row.values.get(column)) == value for column, value in data.where.items())


def readable(files: list[Path], data: Data) -> list[Path]:
    """The files whose format is known; a folder may hold others, such as a README."""
    found = [file for file in files if format_of(file, data.format)]
    if not found:
        names = ", ".join(file.name for file in files[:8])
        raise BadData(
            f"data.format: cannot be told from the names of {names}. Known endings: {' '.join(FORMATS)}. Set it, e.g. `format: csv`."
        )
    return found


def check(data: Data, files: dict[str, list[Path]]) -> list[str]:
    """Everything wrong with the data that shows within seconds, in plain words; `files` by split, those at hand."""
    try:
        "".encode(data.encoding)
    except LookupError:
        return [f"data.encoding: Python knows no encoding {data.encoding!r}. Usual ones: utf-8, latin-1, cp1252, utf-16."]
    problems = []
    for split, paths in files.items():
        try:
            found = _check_columns(data, split, readable(paths, data))
            problems += found or _check_rows(data, split, paths)
        except BadData as error:
            problems.append(str(error) if str(error).startswith("data.") else f"data.{split}: {error}")
    return problems


def _check_columns(data: Data, split: str, files: list[Path]) -> list[str]:
    needed = [("data.text", column) for column in data.text] + [("data.where", column) for column in data.where]
    if data.label and split != "test":  # a test set may come without labels
        needed.append(("data.label", data.label))
    for file in files[:LOOK_FILES]:
        kind = format_of(file, data.format)
        columns = read_columns(file, kind, data.encoding, data.columns, str(file))
        if columns is None:
            continue
        missing = [(setting, column) for setting, column in needed if column not in columns]
        problems = [f"{setting}: {split} file {file} has no column {column!r}. {_known(column, columns)}" for setting, column in missing]
        if problems and kind == "text" and data.label:
            problems[-1] += " Plain text has no labels: set `data.label: null`, or another `data.format`."
        if data.columns and (problem := _check_width(data, split, file, kind)):
            return [problem]  # missing columns only follow from it
        if problems:
            return problems  # the other files of the split will have the same
    return []


def _check_width(data: Data, split: str, file: Path, kind: str) -> str | None:
    if kind not in ("csv", "tsv"):
        return None
    fields = read_columns(file, kind, data.encoding, None, str(file)) or data.columns
    if len(fields) == len(data.columns):
        return None
    return f"data.columns: names {len(data.columns)} columns, but the first line of {split} file {file} has {len(fields)}: {fields}."


def _check_rows(data: Data, split: str, files: list[Path]) -> list[str]:
    kind, labels = label_kind(data), Counter()
    count, whole, until = 0, True, time.monotonic() + LOOK_SECONDS
    # the limits hold for rows before `where`: those it drops take time as well
    values_seen: dict[str, Counter[str]] = {column: Counter() for column in data.where}
    for number, row in enumerate(_every_row(files, data, Oddities())):
        if number >= LOOK_ROWS or (number % 100 == 99 and time.monotonic() > until):
            whole = False
            break
        for column, seen in values_seen.items():
            seen[as_text(row.values.get(column))] += 1
        if _keeps(data, row):
            count += 1
            if data.label:
                cell = row.values.get(data.label)
                if isinstance(cell, list) and data.label_kind != "classes":
                    return [f"data.label: {split} file {row.file} has a list, {cell}, in line {row.line}: set `data.label_kind: classes`."]
                labels[kind.read(cell)] += 1
    if count == 0:
        return _nothing(data, split, files, values_seen) if whole else []
    return kind.problems(split, labels, whole) if data.label else []


def _nothing(data: Data, split: str, files: list[Path], values_seen: dict[str, Counter]) -> list[str]:
    if not any(values_seen.values()):
        return [f"data.{split}: no rows in {', '.join(map(str, files[:3]))}. Is it the right file, and complete?"]
    return [
        f"data.where: no row of {split} has {column!r} = {value!r}. {_known(value, [v for v, _ in values_seen[column].most_common(20)])}"
        for column, value in data.where.items()
        if value not in values_seen[column]
    ] or [f"data.where: no row of {split} meets all of its conditions together. Drop one of them."]


def _known(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"It has: {', '.join(names[:20])}{more}." + (f" Did you mean {near[0]!r}?" if near else "")
