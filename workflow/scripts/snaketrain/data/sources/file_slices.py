"""Divides large files, so that several jobs can read one: text between its lines, and Parquet between its row groups."""

from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

SLICE_BYTES = 1 << 28
MOST_SLICES = 100  # of a file: whoever reads one counts the lines before it
BLOCK = 1 << 20


class FileSlice(NamedTuple):
    """One of the equal parts of a file, in bytes or in row groups."""

    number: int = 0
    total: int = 1

    def bounds(self, size: int) -> tuple[int, int]:
        return size * self.number // self.total, size * (self.number + 1) // self.total


WHOLE = FileSlice()


class Lines(NamedTuple):
    """The lines that begin within a slice: where they are in the file, and the number of the first one."""

    begin: int
    end: int
    first: int


def slices_of(size: int, most: int = MOST_SLICES) -> list[FileSlice]:
    """Those of a file that can be divided. They depend on nothing but the file, so that another number of shards prepares nothing again."""
    total = max(1, min(most, -(-size // SLICE_BYTES)))
    return [FileSlice(number, total) for number in range(total)]


def lines_of(path: Path, file_slice: FileSlice) -> Lines:
    with open(path, "rb") as file:
        begin, end = (_next_line(file, position) for position in file_slice.bounds(path.stat().st_size))
        return Lines(begin, end, 1 + _line_ends(file, begin))


def read_lines(file: BufferedReader, lines: Lines) -> Iterator[bytes]:
    file.seek(lines.begin)
    position = lines.begin
    while position < lines.end and (line := file.readline()):
        position += len(line)
        yield line


def _next_line(file: BufferedReader, position: int) -> int:
    """Where the first line begins that does not begin before a position."""
    if position:
        file.seek(position - 1)
        file.readline()
        return file.tell()
    return 0


def _line_ends(file: BufferedReader, end: int) -> int:
    file.seek(0)
    return sum(file.read(min(BLOCK, end - position)).count(b"\n") for position in range(0, end, BLOCK))
