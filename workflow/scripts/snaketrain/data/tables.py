"""The rows of CSV and TSV files, of which those with more or fewer fields than the header are reported, and of JSON files."""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain

from snaketrain.data.cells import BadData, DataIssues
from snaketrain.labels.base import RARE
from snaketrain.runtime.strict_json import Json, JsonObject

TOLERATED_LONG_ROWS = 10  # rows with too many fields, whatever their share
TOLERATED_JOINED_LINES = 10  # lines within one row that may look like rows by chance
LONGEST_FIELD = 16 * 2**20  # characters; a stray quote would otherwise swallow the rest of a CSV file into one field


def records(kind: str, lines: Iterator[str], issues: DataIssues, name: str) -> Iterator[tuple[int, list[str]]]:
    """The line where each row begins, and its fields."""
    return _csv(lines, issues, name) if kind == "csv" else _tsv(lines)


def table(
    rows: Iterator[tuple[int, list[str]]], columns: list[str] | None, issues: DataIssues, name: str
) -> Iterator[tuple[int, dict[str, str]]]:
    """The fields by column; `columns` names them if the file has no header."""
    columns, rows = header(rows, columns, name)
    total = 0
    long_rows: list[int] = []
    for total, (number, fields) in enumerate(rows, 1):
        if len(fields) > len(columns):
            # it is unknown which fields belong together
            issues.add("long_row", f"{name}, line {number}", " | ".join(fields))
            long_rows.append(number)
            if len(long_rows) > TOLERATED_LONG_ROWS + RARE * total:
                break
            continue
        if len(fields) < len(columns):
            issues.add("short_row", f"{name}, line {number}", " | ".join(fields))
        yield number, dict(zip(columns, fields, strict=False))
    if len(long_rows) > RARE * total:
        raise BadData(
            f"{name}, line {long_rows[0]}: more fields than the {len(columns)} columns, as in {len(long_rows)} of {total} rows. "
            "Put fields that contain a comma into quotes, or set `data.format`."
        )


def distinct(columns: list[str], location: str) -> list[str]:
    """The columns, whose names must differ. Several may be unnamed, as in exports of spreadsheets: no setting can refer to those."""
    if twice := [column for column, count in Counter(columns).items() if count > 1 and column]:
        raise BadData(f"{location}: several columns are called {twice[0]!r}. Give each a name of its own.")
    return columns


def _csv(lines: Iterator[str], issues: DataIssues, name: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST_FIELD)
    # strict: a quote that is never closed, or closed within a field, would join rows
    reader = csv.reader(lines, strict=True)
    begins = 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            if "new-line character" in str(error):
                raise BadData(
                    f"{name}, row beginning in line {begins}: a carriage return outside quotes that ends no line. Remove it, or end each line by \\n."
                ) from None
            raise BadData(
                f"{name}, row beginning in line {begins}: not readable as CSV ({error}). Look for a stray or missing quote there; "
                "for fields separated by tabs, without quotes, set `data.format: tsv`."
            ) from None
        if fields is None:
            return
        if fields:
            if reader.line_num > begins and _joined(fields):
                location = f"{name}, lines {begins} to {reader.line_num}"
                if reader.line_num - begins >= TOLERATED_JOINED_LINES:
                    raise BadData(
                        f"{location}: rows joined into one by quotes, one in the first of them and one in the last. Remove both, or double them."
                    )
                issues.add("joined_rows", location, " | ".join(fields))
            yield begins, fields
        begins = reader.line_num + 1


def _joined(fields: list[str]) -> bool:
    """Whether each line of a row has as many commas as a row should: two stray quotes join the rows between them."""
    commas = len(fields) - 1
    for before, field in enumerate(fields):
        first, *more = field.rstrip("\r\n").split("\n")
        if more and commas:
            *inner, last = more
            if first.count(",") == commas - before and last.count(",") == before and all(line.count(",") == commas for line in inner):
                return True
    return False


def _tsv(lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    # no quoting: in SST-2 and similar files a quote is just a character of the sentence
    for number, line in enumerate(lines, 1):
        if line := line.rstrip("\r\n"):
            yield number, line.split("\t")


def header(
    rows: Iterator[tuple[int, list[str]]], columns: list[str] | None, name: str
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The columns, and the rows below them; `columns`: as the settings name them, where the file has no header."""
    number, fields = next(rows, (1, []))
    location = f"{name}, line {number}"
    if columns is None:
        return distinct(fields, location), rows
    if names := [field for field, column in zip(fields, columns, strict=False) if field.strip().casefold() == column.casefold()]:
        raise BadData(
            f"data.columns: is for files without a header, but {location} looks like one: it has {names[0]!r} in the column of that name. "
            "Remove `columns`; if the line is an ordinary row, rename the column."
        )
    if fields and len(fields) != len(columns):
        raise BadData(f"data.columns: names {len(columns)} columns, but {location} has {len(fields)}: {fields}.")
    return columns, chain([(number, fields)] if fields else [], rows)


# --- The rows of a JSON file: an object on each line, or an array of objects.

CHARACTERS = 2**16  # of an array that are read at once; more where an object, or a line, is longer
SPACE = re.compile(r"\s*")


def json_rows(lines: Iterator[str], name: str) -> Iterator[tuple[int, JsonObject]]:
    """The line where each object begins, and the object."""
    leading: list[str] = []
    for line in lines:
        leading.append(line)
        if line.strip():
            break
    is_array = bool(leading) and leading[-1].lstrip().startswith("[")
    return (_array if is_array else _objects)(chain(leading, lines), name)


def _objects(lines: Iterator[str], name: str) -> Iterator[tuple[int, JsonObject]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if isinstance(row, dict) and line.count(":") > len(row):  # a key may occur twice, of which only the last value is kept
                json.loads(line, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            raise BadData(
                f"{name}, line {number}: not JSON ({error}). Expected one object per line, or an array of objects: correct or remove the line."
            ) from None
        if not isinstance(row, dict):
            raise BadData(
                f'{name}, line {number}: expected one JSON object per line, such as {{"text": "..."}}, not {line.strip()[:40]!r}.'
            )
        yield number, row


def _array(lines: Iterator[str], name: str) -> Iterator[tuple[int, JsonObject]]:
    decode = json.JSONDecoder(object_pairs_hook=_object).raw_decode
    text, at, line, expected = "", 0, 1, "["
    while True:
        text, at, line = _next(lines, text, at, line)
        found = text[at : at + 1]
        if found == "]" and expected == ",":
            text, at, line = _next(lines, text, at + 1, line)
            if text:
                raise BadData(
                    f"{name}, line {line}: {text[at : at + 40]!r} follows the end of the array. Write one array, or one object per line."
                )
            return
        if found != expected:
            raise BadData(f"{name}, line {line}: expected {expected!r} in an array of objects, not {found!r}. Is the file complete?")
        text, at, line = _next(lines, text, at + 1, line)
        if expected == "[" and text[at : at + 1] == "]":
            return
        expected = ","
        while True:
            try:
                row, end = decode(text, at)
                break
            except (ValueError, RecursionError) as error:
                more = _read(lines, max(CHARACTERS, len(text) - at))
                if not more:
                    raise BadData(f"{name}, line {line}: not JSON ({getattr(error, 'msg', error)}). Correct the object there.") from None
                text, at = text[at:] + more, 0
        if not isinstance(row, dict):
            raise BadData(f"{name}, line {line}: expected a JSON object in the array, not {text[at:end][:40]!r}.")
        yield line, row
        line += text.count("\n", at, end)
        at = end


def _next(lines: Iterator[str], text: str, at: int, line: int) -> tuple[str, int, int]:
    """The text, the position of the next character that is no space, and its line; an empty text at the end of the file."""
    while True:
        found = SPACE.match(text, at)
        end = found.end() if found else at
        line += text.count("\n", at, end)
        if end < len(text):
            return text, end, line
        text, at = _read(lines, CHARACTERS), 0
        if not text:
            return "", 0, line


def _read(lines: Iterator[str], characters: int) -> str:
    read: list[str] = []
    while characters > 0 and (line := next(lines, None)) is not None:
        read.append(line)
        characters -= len(line)
    return "".join(read)


def _object(pairs: list[tuple[str, Json]]) -> JsonObject:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError(f"it has {next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)!r} twice")
    return made
