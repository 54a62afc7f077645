"""The rows of CSV and TSV files. Rows with more or fewer fields than the header are reported."""

import csv
from collections import Counter
from collections.abc import Iterator
from itertools import chain

from snaketrain.data.sources.data_issues import RARE, BadData, DataIssues

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
    columns, rows = _header(rows, columns, name)
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


def _header(
    rows: Iterator[tuple[int, list[str]]], columns: list[str] | None, name: str
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The column names, and the rows below them."""
    number, fields = next(rows, (1, []))
    location = f"{name}, line {number}"
    if columns is None:
        return distinct(fields, location), rows
    if names := [field for field, column in zip(fields, columns, strict=False) if field.strip().casefold() == column.casefold()]:
        raise BadData(
            f"data.columns: is for files without a header, but {location} looks like one: it has {names[0]!r} in the column of that name. "
            "Remove `columns`; if the line is an ordinary row, rename the column."
        )
    return columns, chain([(number, fields)] if fields else [], rows)
