"""The rows of one raw file in any format, streamed, so that a file may be larger than memory."""

import codecs
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, groupby
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from snaketrain.config.schema import Data
from snaketrain.config.schema.of_extras import constants
from snaketrain.data.cells import BadData, DataIssues
from snaketrain.data.tables import distinct, header, json_rows, records, table
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    import pyarrow.parquet


# --- Files of another kind than their names or the settings say.

LOOKED_AT = 4096  # bytes
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
BINARY = {
    b"\x1f\x8b": "compressed by gzip: let its name end in .gz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: let its name end in .zst",
    b"\xfd7zXZ": "compressed by xz: decompress it",
    b"BZh": "compressed by bzip2: decompress it",
    b"PAR1": "Parquet: let its name end in .parquet, or set `data.format: parquet`",
    b"PK\x03\x04": "a zip archive or a spreadsheet: export it as CSV",
    b"\xd0\xcf\x11\xe0": "a spreadsheet: export it as CSV",
    b"SQLite format 3": "an SQLite database: export a table as CSV",
    b"ARROW1": "Arrow: write it as Parquet",
}


def refuse_other_kinds(head: bytes, kind: str, encoding: str, name: str) -> None:
    """`head`: the first bytes, decompressed; `kind`: the format that they are to be read as."""
    head = head[:LOOKED_AT]
    is_text = b"\0" not in head and _is_utf8(head)
    if found := next((found for mark, found in BINARY.items() if head.startswith(mark) and not is_text), None):
        raise BadData(f"{name}: this is no text, but {found}.")
    of_units = codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))
    if not of_units and (marked := next((found for mark, found in MARKS.items() if head.startswith(mark)), None)):
        raise BadData(f"{name}: this is {marked.upper()}, not {encoding}. Set `data.encoding: {marked}`, or write the file as UTF-8.")
    # each ASCII character has some in these encodings; more in a row are in a file that was not written completely
    if not of_units and head.count(0) > max(1, len(head) // 40) and b"\0" * 4 not in head:
        raise BadData(
            f"{name}: this is not {encoding}, but seems to be UTF-16 or UTF-32 without a mark. Set `data.encoding` to utf-16-le, utf-16-be, "
            "utf-32-le or utf-32-be, or write the file as UTF-8."
        )
    if is_text and (of_units or not (head.isascii() or codecs.lookup(encoding).name.startswith("utf"))) and head:
        raise BadData(f"{name}: this is UTF-8, not {encoding}. Set `data.encoding: utf-8`, or write the file as {encoding}.")
    if kind in ("csv", "tsv", "text") and not of_units and b"\r" in head[:-1] and b"\n" not in head:
        raise BadData(f"{name}, line 1: its lines end with a carriage return alone. Convert them, for example by `tr '\\r' '\\n'`.")


def _is_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return True


# --- The rows of a file.

LONGEST = 2**28  # characters of one text: more would not fit into a batch's column


def texts(lines: Iterator[str], unit: str, name: str) -> Iterator[tuple[int, str]]:
    """The line in which each text begins, and the text, with line ends as "\\n"."""
    numbered = ((number, line.rstrip("\r\n")) for number, line in enumerate(lines, 1))
    if unit == "line":
        yield from numbered
    elif unit == "paragraph":
        for filled, some in groupby(numbered, key=lambda line: bool(line[1].strip())):
            if filled:
                yield _joined(some, name)
    elif (line := next(numbered, None)) is not None:
        yield _joined(chain([line], numbered), name)


def _joined(lines: Iterator[tuple[int, str]], name: str) -> tuple[int, str]:
    begins, size = 0, 0
    kept: list[str] = []
    for number, line in lines:
        begins = begins or number
        kept.append(line)
        size += len(line) + 1
        if size > LONGEST:
            raise BadData(
                f"{name}, line {begins}: a text of more than {LONGEST:,} characters. Split the file, or choose a smaller `text_unit`."
            )
    return begins, "\n".join(kept)


FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
}
NAMED = zip(constants("file_format", "NAME"), constants("file_format", "ENDINGS"), strict=True)  # by extras
FORMATS |= {ending: name for name, endings in NAMED for ending in endings}
Reader: TypeAlias = Callable[
    [Iterator[str], list[str] | None, str], Iterator[tuple[int, JsonObject]]
]  # of lines, columns, and the file's name
Readers: TypeAlias = Mapping[str, Reader]


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
    path: Path, kind: str, data: Data, issues: DataIssues, name: str, only: set[str] | None = None,
    readers: Readers = MappingProxyType({}),
) -> Iterator[tuple[int, JsonObject]]:  # fmt: skip
    """The line where a row begins (from 1; for Parquet the row), and the row's values by column. `readers`: of other formats."""
    if kind == "parquet":
        return _placed(_parquet(path, name, only), name, "row")
    lines = _lines(path, kind, data.encoding, issues, name)
    rows: Iterator[tuple[int, JsonObject]]
    if kind == "text":
        rows = ((number, {"text": text}) for number, text in texts(lines, data.text_unit, name))
    elif kind == "jsonl":
        rows = json_rows(lines, name)
    elif kind in readers:
        rows = readers[kind](lines, data.columns, name)
    else:
        rows = table(records(kind, lines, issues, name), data.columns, issues, name)
    return _placed(rows, name)


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


def read_columns(path: Path, kind: str, data: Data, name: str, readers: Readers = MappingProxyType({})) -> list[str] | None:
    """The columns of a file, from its beginning; None if it is empty."""
    if kind == "text":
        return ["text"]
    if kind == "parquet":
        return distinct(parquet_file(path, name).schema_arrow.names, name)
    if kind in ("csv", "tsv"):
        lines = _lines(path, kind, data.encoding, DataIssues(), name)
        return header(_placed(records(kind, lines, DataIssues(), name), name), data.columns, name)[0] or None
    first = [row for _, (_, row) in zip(range(100), read_rows(path, kind, data, DataIssues(), name, readers=readers), strict=False)]
    return list(dict.fromkeys(key for row in first for key in row)) if first else None


def _lines(path: Path, kind: str, encoding: str, issues: DataIssues, name: str) -> Iterator[str]:
    """Lines with their ends. What cannot be decoded is reported and replaced: one bad byte must not cost a night's work."""
    number = 0
    try:
        with _opened(path) as file:
            refuse_other_kinds(file.peek(LOOKED_AT), kind, encoding, name)
            # UTF-16 and the like cannot be split into lines before they are decoded
            decoded = (_decoded_by_line if "\n".encode(encoding) == b"\n" else _decoded_as_a_whole)(file, encoding)
            for number, (line, valid) in enumerate(decoded, 1):
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


def _decoded_by_line(file: gzip.GzipFile | io.BufferedReader, encoding: str) -> Iterator[tuple[str, bool]]:
    for raw in file:
        try:
            yield raw.decode(encoding), True
        except UnicodeDecodeError:
            yield raw.decode(encoding, "replace"), False


def _decoded_as_a_whole(file: gzip.GzipFile | io.BufferedReader, encoding: str) -> Iterator[tuple[str, bool]]:
    with io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="\n") as text:
        for line in text:
            yield line, "\ufffd" not in line


def parquet_file(path: Path, name: str) -> "pyarrow.parquet.ParquetFile":
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path, memory_map=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise _bad_parquet(name, error) from None


def _parquet(path: Path, name: str, only: set[str] | None) -> Iterator[tuple[int, JsonObject]]:
    import pyarrow

    file = parquet_file(path, name)
    wanted = [column for column in distinct(file.schema_arrow.names, name) if only is None or column in only]
    number = 0
    for group in range(file.num_row_groups):
        try:
            for batch in file.iter_batches(batch_size=1000, row_groups=[group], columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
            raise _bad_parquet(f"{name}, row group {group}, after row {number}", error) from None


def _bad_parquet(place: str, error: Exception) -> BadData:
    return BadData(f"{place}: not readable as Parquet ({error}). Is the file complete? If it has another format, set `data.format`.")
