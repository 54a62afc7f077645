"""The rows of CSV and TSV files: every row has the fields that the header has, or somebody is told."""

import csv
from collections import Counter
from collections.abc import Iterator
from itertools import chain

from snaketrain.data.sources.data_issues import RARE, BadData, DataIssues

PATIENCE = 10  # rows with too many fields that are not yet too many, whatever their share
BY_CHANCE = 10  # lines of one field that may look like rows
LONGEST_FIELD = 16 * 2**20  # characters; a stray quote would otherwise swallow the rest of a CSV file into one field


def records(kind: str, lines: Iterator[str], odd: DataIssues, name: str) -> Iterator[tuple[int, list[str]]]:
    """The line where each begins, and its fields."""
    return _csv(lines, odd, name) if kind == "csv" else _tsv(lines)


def table(
    rows: Iterator[tuple[int, list[str]]], columns: list[str] | None, odd: DataIssues, name: str
) -> Iterator[tuple[int, dict[str, str]]]:
    """The fields by column; `columns`: their names, where the file has no header."""
    columns, rows = _header(rows, columns, name)
    total, surplus = 0, []
    for total, (number, fields) in enumerate(rows, 1):
        if len(fields) > len(columns):
            # which of them belong together nobody can tell
            odd.add("long_row", f"{name}, line {number}", " | ".join(fields))
            surplus.append(number)
            if len(surplus) > PATIENCE + RARE * total:
                break
            continue
        if len(fields) < len(columns):
            odd.add("short_row", f"{name}, line {number}", " | ".join(fields))
        yield number, dict(zip(columns, fields, strict=False))
    if len(surplus) > RARE * total:
        raise BadData(
            f"{name}, line {surplus[0]}: more fields than the {len(columns)} columns, as in {len(surplus)} of {total} rows. "
            "Put fields that contain a comma into quotes, or set `data.format`."
        )


def distinct(columns: list[str], place: str) -> list[str]:
    """The columns, no two of which have one name; without a name, as spreadsheets leave them behind, nobody can mean them."""
    if twice := [column for column, count in Counter(columns).items() if count > 1 and column]:
        raise BadData(f"{place}: several columns are called {twice[0]!r}. Give each a name of its own.")
    return columns


def _csv(lines: Iterator[str], odd: DataIssues, name: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST_FIELD)
    # strict: a quote that is never closed, or closed within a field, would join rows
    reader = csv.reader(lines, strict=True)
    begins = 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise BadData(
                f"{name}, row beginning in line {begins}: not readable as CSV ({error}). Look for a stray or missing quote there; "
                "for fields separated by tabs, without quotes, set `data.format: tsv`."
            ) from None
        if fields is None:
            return
        if fields:
            if reader.line_num > begins and _joined(fields):
                place = f"{name}, lines {begins} to {reader.line_num}"
                if reader.line_num - begins >= BY_CHANCE:
                    raise BadData(
                        f"{place}: rows joined into one by quotes, one in the first of them and one in the last. Remove both, or double them."
                    )
                odd.add("joined_rows", place, " | ".join(fields))
            yield begins, fields
        begins = reader.line_num + 1


def _joined(fields: list[str]) -> bool:
    """Whether each line of a row has as many commas as rows have: two stray quotes join the rows between them."""
    surplus = len(fields) - 1
    for before, field in enumerate(fields):
        if "\n" in field and surplus:
            first, *inner, last = field.rstrip("\r\n").split("\n")
            if first.count(",") == surplus - before and last.count(",") == before and all(line.count(",") == surplus for line in inner):
                return True
    return False


def _tsv(lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    # no quoting: in SST-2 and its like a quote is just a character of the sentence
    for number, line in enumerate(lines, 1):
        if line := line.rstrip("\r\n"):
            yield number, line.split("\t")


def _header(
    rows: Iterator[tuple[int, list[str]]], columns: list[str] | None, name: str
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The names of the columns, and the rows below."""
    number, fields = next(rows, (1, []))
    place = f"{name}, line {number}"
    if columns is None:
        return distinct(fields, place), rows
    if names := [field for field, column in zip(fields, columns, strict=False) if field.strip().casefold() == column.casefold()]:
        raise BadData(
            f"data.columns: is for files without a header, but {place} looks like one: it has {names[0]!r} in the column of that name. "
            "Remove `columns`; if it is a row like others, give the column another name."
        )
    return columns, chain([(number, fields)] if fields else [], rows)
