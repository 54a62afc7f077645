"""Rows between the raw files and the splits: in batches, and in a temporary file, so that nothing is read twice."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, TypeVar

import numpy
import pyarrow
from tqdm import tqdm

from snaketrain.config.schema import Data
from snaketrain.data.text.surveying import Example
from snaketrain.labels import label_kind

BATCH_ROWS, BATCH_SIZE = 10_000, 2_000_000  # a batch is full at so many rows, or so many characters or bytes

T = TypeVar("T")


def row_schema(data: Data) -> pyarrow.Schema:
    texts = [(name, pyarrow.string()) for name in data.text_columns]
    label = label_kind(data.label_kind).parser(data).raw_type()
    return pyarrow.schema([("file", pyarrow.string()), ("line", pyarrow.int64()), ("label", label), *texts])


def in_batches(rows: Iterable[Example], schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    for some in _grouped(rows, lambda row: 1, lambda row: sum(map(len, row.texts))):
        files, lines, texts, labels = zip(*some, strict=True)
        columns = (files, lines, labels, *zip(*texts, strict=True))
        yield pyarrow.record_batch(list(map(pyarrow.array, columns, schema.types)), schema=schema)


def joined(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Small batches, as a selection leaves them, joined to full ones."""
    yield from map(pyarrow.concat_batches, _grouped(batches, lambda batch: batch.num_rows, lambda batch: batch.nbytes))


def cases(batch: pyarrow.RecordBatch) -> list[tuple[str, str]]:
    """Locations and texts, to be shown as data issues."""
    columns = [batch[name].to_pylist() for name in ("file", "line", "text")]
    return [(f"{file}, line {line}", text) for file, line, text in zip(*columns, strict=True)]


def progress(batches: Iterable[pyarrow.RecordBatch], what: str, total: int | None = None) -> Iterator[pyarrow.RecordBatch]:
    """Show progress on stderr once it takes more than a moment; seldom in log files, where every update is a line."""
    seconds = 0.5 if sys.stderr.isatty() else 10
    with tqdm(desc=what, total=total, unit=" rows", mininterval=seconds, delay=2, file=sys.stderr) as shown:
        for batch in batches:
            yield batch
            shown.update(batch.num_rows)


class Spool:
    """The rows of one source, numbered in order. The file has no name, so it vanishes with the process, however that ends."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.starts = [0]  # of the batches, and the end of the last

    def fill(self, batches: Iterable[pyarrow.RecordBatch], schema: pyarrow.Schema) -> None:
        with pyarrow.ipc.new_file(self.file, schema) as spool:
            for batch in batches:
                spool.write_batch(batch)
                self.starts.append(self.starts[-1] + batch.num_rows)

    def selected(self, rows: numpy.ndarray) -> Iterator[pyarrow.RecordBatch]:
        """The rows with these ascending numbers. Batches are read one at a time: memory-mapped, they would all count as used."""
        spool = pyarrow.ipc.open_file(self.file)
        parts = numpy.split(rows, numpy.searchsorted(rows, self.starts[1:-1]))
        for number, (start, part) in enumerate(zip(self.starts, parts, strict=False)):
            if len(part):
                yield spool.get_batch(number).take(pyarrow.array(part - start))


def _grouped(items: Iterable[T], rows: Callable[[T], int], size: Callable[[T], int]) -> Iterator[list[T]]:
    group: list[T] = []
    all_rows = all_size = 0
    for item in items:
        group.append(item)
        all_rows += rows(item)
        all_size += size(item)
        if all_rows >= BATCH_ROWS or all_size >= BATCH_SIZE:
            yield group
            group, all_rows, all_size = [], 0, 0
    if group:
        yield group
