"""The rows of one raw file in any format, streamed, so that a file may be larger than memory."""

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.config.schema import Data
from snaketrain.data.sources.data_issues import BadData, DataIssues
from snaketrain.data.sources.json_rows import json_rows
from snaketrain.data.sources.plain_text import texts
from snaketrain.data.sources.tables import distinct, records, table
from snaketrain.runtime.json_types import JsonObject

if TYPE_CHECKING:
    import pyarrow.parquet

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
}


COMPRESSED = (".gz", ".zst")


def format_of(path: Path, wanted: str) -> str | None:
    plain = Path(path.stem if path.suffix.lower() in COMPRESSED else path.name)
    return FORMATS.get(plain.suffix.lower()) if wanted == "auto" else wanted


def read_rows(
    path: Path, kind: str, data: Data, issues: DataIssues, name: str, only: set[str] | None = None
) -> Iterator[tuple[int, JsonObject]]:
    """The line where a row begins (from 1; for Parquet the row), and the row's values by column."""
    if kind == "parquet":
        yield from _parquet(path, only)
        return
    lines = _lines(path, data.encoding, issues, name)
    if kind == "text":
        yield from ((number, {"text": text}) for number, text in texts(lines, data.text_unit, name))
    elif kind == "jsonl":
        yield from json_rows(lines, name)
    else:
        yield from table(records(kind, lines, issues, name), data.columns, issues, name)


def read_columns(path: Path, kind: str, data: Data, name: str) -> list[str] | None:
    """The columns of a file, from its beginning; None if it is empty."""
    if kind == "text":
        return ["text"]
    if kind == "parquet":
        return distinct(_parquet_file(path).schema_arrow.names, name)
    if kind in ("csv", "tsv"):
        return data.columns or next((fields for _, fields in first_records(path, kind, data.encoding, name)), None)
    first = [row for _, (_, row) in zip(range(100), read_rows(path, kind, data, DataIssues(), name), strict=False)]
    return list(dict.fromkeys(key for row in first for key in row)) if first else None


def first_records(path: Path, kind: str, encoding: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table as they are, including the header."""
    return records(kind, _lines(path, encoding, DataIssues(), name), DataIssues(), name)


def _lines(path: Path, encoding: str, issues: DataIssues, name: str) -> Iterator[str]:
    """Lines with their ends. What cannot be decoded is reported and replaced: one bad byte must not cost a night's work."""
    try:
        with _opened(path) as file:
            # UTF-16 and the like cannot be split into lines before they are decoded
            decoded = _decoded_by_line(file, encoding) if "\n".encode(encoding) == b"\n" else _decoded_as_a_whole(file, encoding)
            for number, (line, valid) in enumerate(decoded, 1):
                if not valid:
                    issues.add("bad_encoding", f"{name}, line {number}", line.strip())
                yield line.removeprefix("\ufeff") if number == 1 else line
    except (OSError, EOFError, zlib.error) as error:
        raise BadData(f"{name}: cannot be read: {error}. Correct the source, or fetch it again.") from None


def _opened(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """The file's bytes, decompressed."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path)
    if path.suffix.lower() == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))  # which reports a file that is cut off
    return open(path, "rb")


def _decoded_by_line(file: Iterable[bytes], encoding: str) -> Iterator[tuple[str, bool]]:
    for raw in file:
        try:
            yield raw.decode(encoding), True
        except UnicodeDecodeError:
            yield raw.decode(encoding, "replace"), False


def _decoded_as_a_whole(file: gzip.GzipFile | io.BufferedReader, encoding: str) -> Iterator[tuple[str, bool]]:
    with io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="") as text:
        for line in text:
            yield line, "\ufffd" not in line


def _parquet_file(path: Path) -> "pyarrow.parquet.ParquetFile":
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path, memory_map=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise _bad_parquet(path, error) from None


def _parquet(path: Path, only: set[str] | None) -> Iterator[tuple[int, JsonObject]]:
    import pyarrow

    file = _parquet_file(path)
    wanted = [name for name in distinct(file.schema_arrow.names, str(path)) if only is None or name in only]
    number = 0
    try:
        for batch in file.iter_batches(batch_size=1000, columns=wanted):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pyarrow.ArrowException, OSError) as error:
        raise _bad_parquet(path, error) from None


def _bad_parquet(path: Path, error: Exception) -> BadData:
    return BadData(f"{path}: not readable as Parquet ({error}). Is the file complete? If it has another format, set `data.format`.")
