"""The rows of one raw file, whatever its format: streamed, so that a file may be larger than the memory."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from snaketrain.data.oddities import Oddities

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
}
LONGEST_FIELD = 16 * 2**20  # characters; a stray quote would otherwise swallow the rest of a CSV file into one field


class BadData(ValueError):
    """The data cannot be used; the message says where, what, and what to do."""


def format_of(path: Path, wanted: str) -> str | None:
    return FORMATS.get(Path(path.name.removesuffix(".gz")).suffix.lower()) if wanted == "auto" else wanted


def read_rows(
    path: Path, kind: str, encoding: str, columns: list[str] | None, odd: Oddities, name: str, only: set[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The line where a row begins (from 1; for Parquet the row), and the row's values by column."""
    if kind == "parquet":
        yield from _parquet(path, only)
        return
    lines = _lines(path, encoding, odd, name)
    if kind == "text":
        yield from ((number, {"text": line.rstrip("\r\n")}) for number, line in enumerate(lines, 1))
    elif kind == "jsonl":
        yield from _jsonl(lines, name)
    else:
        yield from _table(_csv(lines, name) if kind == "csv" else _tsv(lines), columns, odd, name)


def read_columns(path: Path, kind: str, encoding: str, columns: list[str] | None, name: str) -> list[str] | None:
    """The columns of a file, without reading more than its beginning; None: it is empty."""
    if kind == "text":
        return ["text"]
    if kind == "parquet":
        return _parquet_file(path).schema_arrow.names
    if kind in ("csv", "tsv"):
        if columns:
            return columns
        lines = _lines(path, encoding, Oddities(), name)
        return next((fields for _, fields in (_csv(lines, name) if kind == "csv" else _tsv(lines))), None)
    first = [row for _, (_, row) in zip(range(100), read_rows(path, kind, encoding, None, Oddities(), name), strict=False)]
    return list(dict.fromkeys(key for row in first for key in row)) if first else None


def _lines(path: Path, encoding: str, odd: Oddities, name: str) -> Iterator[str]:
    """Lines with their ends. What cannot be decoded is named and replaced: one bad byte must not cost a night's work."""
    try:
        with gzip.open(path) if path.name.endswith(".gz") else open(path, "rb") as file:
            # UTF-16 and its like cannot be split into lines before they are decoded
            decoded = _decoded_by_line(file, encoding) if "\n".encode(encoding) == b"\n" else _decoded_as_a_whole(file, encoding)
            for number, (line, sound) in enumerate(decoded, 1):
                if not sound:
                    odd.add("bad_encoding", f"{name}, line {number}", line.strip())
                yield line.removeprefix("\ufeff") if number == 1 else line
    except (OSError, EOFError, zlib.error) as error:
        raise BadData(f"{name}: cannot be read: {error}. Correct the source, or fetch it again.") from None


def _decoded_by_line(file: IO[bytes], encoding: str) -> Iterator[tuple[str, bool]]:
    for raw in file:
        try:
            yield raw.decode(encoding), True
        except UnicodeDecodeError:
            yield raw.decode(encoding, "replace"), False


def _decoded_as_a_whole(file: IO[bytes], encoding: str) -> Iterator[tuple[str, bool]]:
    with io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="") as text:
        for line in text:
            yield line, "\ufffd" not in line


def _csv(lines: Iterator[str], name: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(lines)
    begins = 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise BadData(
                f"{name}, row beginning in line {begins}: not readable as CSV ({error}). Look for a stray or missing quote there; "
                "for fields separated by tabs set `data.format: tsv`."
            ) from None
        if fields is None:
            return
        if fields:
            yield begins, fields
        begins = reader.line_num + 1


def _tsv(lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    # no quoting: in SST-2 and its like a quote is just a character of the sentence
    for number, line in enumerate(lines, 1):
        if line := line.rstrip("\r\n"):
            yield number, line.split("\t")


def _table(records: Iterator[tuple[int, list[str]]], columns: list[str] | None, odd: Oddities, name: str) -> Iterator[tuple[int, dict]]:
    for number, fields in records:
        if columns is None:
            columns = fields
            continue
        if len(fields) != len(columns):
            odd.add("short_row" if len(fields) < len(columns) else "long_row", f"{name}, line {number}", " | ".join(fields))
        yield number, dict(zip(columns, fields, strict=False))


def _jsonl(lines: Iterator[str], name: str) -> Iterator[tuple[int, dict]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadData(
                f"{name}, line {number}: not JSON ({error}). Expected is one object a line; correct or remove the line."
            ) from None
        if not isinstance(row, dict):
            raise BadData(
                f'{name}, line {number}: expected is one JSON object a line, such as {{"text": "..."}}, not {line.strip()[:40]!r}.'
            )
        yield number, row


def _parquet_file(path: Path):
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path, memory_map=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise _bad_parquet(path, error) from None


def _parquet(path: Path, only: set[str] | None) -> Iterator[tuple[int, dict]]:
    import pyarrow

    file = _parquet_file(path)
    wanted = [name for name in file.schema_arrow.names if only is None or name in only]
    number = 0
    try:
        for batch in file.iter_batches(batch_size=1000, columns=wanted):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pyarrow.ArrowException, OSError) as error:
        raise _bad_parquet(path, error) from None


def _bad_parquet(path: Path, error: Exception) -> BadData:
    return BadData(f"{path}: not readable as Parquet ({error}). Is the file complete? If it is of another kind, set `data.format`.")
