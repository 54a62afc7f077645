"""The rows of a split's raw files, and whether these have the columns that the settings name."""

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from snaketrain.config.errors import nearest
from snaketrain.config.schema import Data
from snaketrain.config.schema.of_extras import modules
from snaketrain.data.cells import BadData, DataIssues, as_messages
from snaketrain.data.formats import FORMATS, format_of, read_columns, read_rows, refuse_other_compression
from snaketrain.labels import label_kind
from snaketrain.labels.base import NotText, as_text
from snaketrain.runtime.strict_json import JsonObject, shortened

READERS = {extra.NAME: extra.rows for extra in modules("file_format")}
PREVIEW_FILES = 50  # of a split, whose columns are looked at before any job

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
    all_rows: bool = False,
) -> Iterator[RawRow]:  # fmt: skip
    """The rows that match `data.where`, or `all_rows`, file by file; messages name the files relative to `root`.

    `further`: other columns to read.
    """
    needed = {*data.text_columns.values(), *data.where, *data.slices, *further} | ({data.label} if data.label else set())
    for file, kind in readable(files, data):
        name = str(file.relative_to(root)) if root else str(file)
        line = 0
        for line, values in read_rows(file, kind, data, issues, name, needed, READERS):
            row = RawRow(name, line, values)
            if all_rows or matches(data, row):
                yield row
        if not line:
            issues.add("empty_file", name)


def matches(data: Data, row: RawRow) -> bool:
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
    try:
        "".encode(data.encoding)
    except LookupError:
        raise BadData(f"data.encoding: Python knows no encoding {data.encoding!r}. Usual ones: utf-8, latin-1, cp1252, utf-16.") from None
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
        print(f"{setting}: {unread}: {shortened(names, most=8)}", flush=True)


def check_columns(
    data: Data, split: str, files: list[tuple[Path, str]], most: int = PREVIEW_FILES, further: Iterable[tuple[str, str]] = ()
) -> list[str]:
    """Problems with the columns of the first files; `further`: columns that must be there besides those of texts and `where`, each with its setting."""
    needed = [
        *((data.setting_of(name), column) for name, column in data.text_columns.items()),
        *(("where", column) for column in data.where),
        *(("slices", column) for column in data.slices),
    ]
    for file, kind in files[:most]:
        columns = read_columns(file, kind, data, str(file), READERS)
        if columns is None:
            continue
        missing = [(setting, column) for setting, column in (*needed, *further) if column not in columns]
        problems = [
            f"data.{setting}: {split} file {file} has no column {column!r}. {it_has(column, columns)}" for setting, column in missing
        ]
        if problems and kind == "text" and data.label:
            problems[-1] += " Plain text has no labels: set `data.label: null`, or another `data.format`."
        if data.text_unit != "line" and kind != "text":
            problems.append(f"data.text_unit: is for plain text, but {split} file {file} is {kind}. Remove it.")
        if problems:
            return problems  # the split's other files will have the same ones
    return []


def parser_of(data: Data) -> Callable[[object], str]:
    """Of the columns of texts."""
    return as_messages if data.messages else label_kind(data.label_kind).parser.text


def it_has(name: str, names: list[str]) -> str:
    return f"It has: {shortened(names, 20)}{nearest(name, names)}"
