"""The rows of one raw file in any format, streamed, so that a file may be larger than memory."""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from snaketrain.config.schema import Data
from snaketrain.data.sources.data_issues import BadData, DataIssues
from snaketrain.data.sources.file_kinds import LOOKED_AT, refuse_other_kinds
from snaketrain.data.sources.file_slices import WHOLE, FileSlice, Lines, lines_of, read_lines, slices_of
from snaketrain.data.sources.json_rows import json_rows
from snaketrain.data.sources.plain_text import texts
from snaketrain.data.sources.tables import distinct, records, table
from snaketrain.runtime.strict_json import JsonObject

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


T = TypeVar("T")

COMPRESSED = (".gz", ".zst")
OTHERWISE_COMPRESSED = (".bz2", ".xz", ".lzma", ".lz4", ".br", ".z", ".7z", ".zip", ".rar")  # which are not read


def format_of(path: Path, wanted: str) -> str | None:
    plain = Path(path.stem if path.suffix.lower() in COMPRESSED else path.name)
    return FORMATS.get(plain.suffix.lower()) if wanted == "auto" else wanted


def refuse_other_compression(path: Path, wanted: str) -> None:
    """Such a file is data, so it must not be passed over like a README, nor its bytes be read as text."""
    if path.suffix.lower() in OTHERWISE_COMPRESSED and format_of(path.with_name(path.stem), wanted):
        raise BadData(f"{path.name}: {path.suffix} is not read. Compress the file as .gz or .zst instead, or decompress it.")


def read_rows(
    path: Path, kind: str, data: Data, issues: DataIssues, name: str, only: set[str] | None = None, file_slice: FileSlice = WHOLE
) -> Iterator[tuple[int, JsonObject]]:
    """The line where a row begins (from 1; for Parquet the row), and the row's values by column."""
    if kind == "parquet":
        return _placed(_parquet(path, name, only, file_slice), name, "row")
    return _placed(_text_rows(path, kind, data, issues, name, file_slice), name)


def _text_rows(path: Path, kind: str, data: Data, issues: DataIssues, name: str, file_slice: FileSlice) -> Iterator[tuple[int, JsonObject]]:
    within = None if file_slice == WHOLE else lines_of(path, file_slice)
    first = within.first if within else 1
    lines = _lines(path, kind, data.encoding, issues, name, within)
    if kind == "text":
        return ((number, {"text": text}) for number, text in texts(lines, data.text_unit, name, first))
    if kind == "jsonl":
        return json_rows(lines, name, first)
    return table(records(kind, lines, issues, name), data.columns, issues, name)


def _placed(rows: Iterator[tuple[int, T]], name: str, unit: str = "line") -> Iterator[tuple[int, T]]:
    """The same rows; whatever error the reading of one raises names the file and the row before it."""
    number = 0
    try:
        for number, row in rows:
            yield number, row
    except (BadData, MemoryError):
        raise
    except Exception as error:
        after = f", after {unit} {number}" if number else ""
        raise BadData(
            f"{name}{after}: cannot be read ({type(error).__name__}: {error}). Correct or remove what follows there, or write the file anew."
        ) from error


def read_columns(path: Path, kind: str, data: Data, name: str) -> list[str] | None:
    """The columns of a file, from its beginning; None if it is empty."""
    if kind == "text":
        return ["text"]
    if kind == "parquet":
        return distinct(_parquet_file(path, name).schema_arrow.names, name)
    if kind in ("csv", "tsv"):
        return data.columns or next((fields for _, fields in first_records(path, kind, data.encoding, name)), None)
    first = [row for _, (_, row) in zip(range(100), read_rows(path, kind, data, DataIssues(), name), strict=False)]
    return list(dict.fromkeys(key for row in first for key in row)) if first else None


def first_records(path: Path, kind: str, encoding: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table as they are, including the header."""
    return _placed(records(kind, _lines(path, kind, encoding, DataIssues(), name), DataIssues(), name), name)


def slices(path: Path, data: Data) -> list[FileSlice]:
    """Of a large file; others, and those whose rows may have several lines, are one slice."""
    kind, size = format_of(path, data.format), path.stat().st_size
    found = slices_of(size)
    if len(found) > 1 and kind == "parquet":
        return slices_of(size, _parquet_file(path, str(path)).num_row_groups)
    if len(found) > 1 and path.suffix.lower() not in COMPRESSED and _ends_lines_as_ascii(data.encoding):
        has_a_row_on_each_line = (kind == "jsonl" and not _is_array(path)) or (kind == "text" and data.text_unit == "line")
        return found if has_a_row_on_each_line else [WHOLE]
    return [WHOLE]


def _is_array(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(1000).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def _ends_lines_as_ascii(encoding: str) -> bool:
    """UTF-16 and the like cannot be split into lines before they are decoded."""
    return "\n".encode(encoding) == b"\n"


def _lines(path: Path, kind: str, encoding: str, issues: DataIssues, name: str, within: Lines | None = None) -> Iterator[str]:
    """Lines with their ends. What cannot be decoded is reported and replaced: one bad byte must not cost a night's work."""
    number = 0
    try:
        with _opened(path) as file:
            refuse_other_kinds(file.peek(LOOKED_AT), kind, encoding, name)
            if within and isinstance(file, io.BufferedReader):
                decoded = _decoded_by_line(read_lines(file, within), encoding)
            else:
                decoded = _decoded_by_line(file, encoding) if _ends_lines_as_ascii(encoding) else _decoded_as_a_whole(file, encoding)
            for number, (line, valid) in enumerate(decoded, within.first if within else 1):
                if not valid:
                    issues.add("bad_encoding", f"{name}, line {number}", line.strip())
                if "\0" in line:
                    issues.add("zero", f"{name}, line {number}", line.strip())
                if kind in ("tsv", "text") and "\r" in line.rstrip("\r\n"):
                    issues.add("carriage_return", f"{name}, line {number}", line.strip())
                yield line.removeprefix("\ufeff") if number == 1 else line
    except (OSError, EOFError, zlib.error) as error:
        after = f", after line {number}" if number else ""
        raise BadData(f"{name}{after}: cannot be read: {error}. Correct the source, or fetch it again.") from None


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
    with io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="\n") as text:
        for line in text:
            yield line, "\ufffd" not in line


def _parquet_file(path: Path, name: str) -> "pyarrow.parquet.ParquetFile":
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path, memory_map=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise _bad_parquet(name, error) from None


def _parquet(path: Path, name: str, only: set[str] | None, file_slice: FileSlice) -> Iterator[tuple[int, JsonObject]]:
    import pyarrow

    file = _parquet_file(path, name)
    wanted = [column for column in distinct(file.schema_arrow.names, name) if only is None or column in only]
    first, last = file_slice.bounds(file.num_row_groups)
    number = sum(file.metadata.row_group(group).num_rows for group in range(first))
    for group in range(first, last):
        try:
            for batch in file.iter_batches(batch_size=1000, row_groups=[group], columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
            raise _bad_parquet(f"{name}, row group {group}, after row {number}", error) from None


def _bad_parquet(place: str, error: Exception) -> BadData:
    return BadData(f"{place}: not readable as Parquet ({error}). Is the file complete? If it has another format, set `data.format`.")
