"""The file of one split, and the facts counted while it is written."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy
import pyarrow
import pyarrow.compute
from tqdm import tqdm

from snaketrain.config.schema import Data
from snaketrain.data.cells import DataIssues
from snaketrain.data.surveying import Example
from snaketrain.data.tokenizer import token_schema
from snaketrain.labels import label_kind
from snaketrain.runtime.strict_json import JsonObject

# --- Rows between the raw files and the splits: in batches, and in a temporary file, so that nothing is read twice.

BATCH_ROWS, BATCH_SIZE = 10_000, 2_000_000  # a batch is full at so many rows, or so many characters or bytes

T = TypeVar("T")


def row_schema(data: Data) -> pyarrow.Schema:
    texts = [(name, pyarrow.string()) for name in (*data.text_columns, *data.slice_columns)]
    label = arrow_type(label_kind(data.label_kind).parser.raw)
    return pyarrow.schema([("file", pyarrow.string()), ("line", pyarrow.int64()), ("label", label), *texts])


def arrow_type(name: str) -> pyarrow.DataType:
    """Of labels, as a label kind writes it."""
    element = pyarrow.type_for_alias(name.removesuffix("[]"))
    return pyarrow.list_(element) if name.endswith("[]") else element


def in_batches(rows: Iterable[Example], schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    for some in _grouped(rows, lambda row: 1, lambda row: sum(map(len, row.texts))):
        files, lines, texts, labels, slices = zip(*some, strict=True)
        columns = (files, lines, labels, *zip(*texts, strict=True), *zip(*slices, strict=True))
        yield pyarrow.record_batch(list(map(pyarrow.array, columns, schema.types)), schema=schema)


def full_batches(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
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


class SplitWriter:
    """Writes one split, with labels encoded, and counts as it goes."""

    def __init__(self, data: Data, names: list[str], class_of: dict[str, int], labelled: bool):
        kind = label_kind(data.label_kind)
        self.parser, self.tally, self.class_of, self.labelled = kind.parser(data), kind.tally(names), class_of, labelled
        fields = [("id", pyarrow.int64()), ("input_ids", pyarrow.list_(pyarrow.int32()))]
        # some rows alone do not show how many classes there are
        classes = {"classes": "0" if self.parser.token_lists else str(len(names))}  # 0: lists are no sets of classes
        fields += [pyarrow.field("label", arrow_type(self.parser.prepared), metadata=classes)]
        fields += [("text", pyarrow.string()), ("line", pyarrow.int64())]
        fields += [(name, pyarrow.string()) for name in (*list(data.text_columns)[1:], *data.slice_columns)]
        fields += [field for field in token_schema(data) if field.name not in ("input_ids", "truncated")]
        self.schema = pyarrow.schema(fields)
        self.counts = Counter(examples=0, tokens=0, longest=0, truncated=0)

    def write(self, batches: Iterable[pyarrow.RecordBatch], path: Path, issues: DataIssues) -> None:
        with self.opened(path, issues) as add:
            for batch in batches:
                add(batch)

    @contextmanager
    def opened(self, path: Path, issues: DataIssues) -> Iterator[Callable[[pyarrow.RecordBatch], None]]:
        """Gives a function that adds a batch; the file is in its place once all are added."""
        building = path.with_name(f".{path.name}.new")
        with pyarrow.ipc.new_file(str(building), self.schema) as file:

            def add(batch: pyarrow.RecordBatch) -> None:
                if len(batch):
                    file.write_batch(self._as_prepared(batch))
                    self._count(batch, issues)

            yield add
        os.replace(building, path)

    def facts(self) -> JsonObject:
        return {"labelled": self.labelled} | dict(self.counts) | self.tally.facts()

    def _as_prepared(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        labels = [self.parser.missing] * len(batch)
        if self.labelled:
            labels = [self.parser.encode(label, self.class_of) for label in batch["label"].to_pylist()]
            for label in labels:
                self.tally.add(label)
        start = self.counts["examples"]
        columns = {name: batch[name] for name in batch.schema.names} | {"id": range(start, start + len(batch)), "label": labels}
        return pyarrow.record_batch([pyarrow.array(columns[field.name], field.type) for field in self.schema], schema=self.schema)

    def _count(self, batch: pyarrow.RecordBatch, issues: DataIssues) -> None:
        lengths, cut = pyarrow.compute.list_value_length(batch["input_ids"]), batch.filter(batch["truncated"])
        self.counts["examples"] += len(batch)
        self.counts["tokens"] += pyarrow.compute.sum(lengths).as_py()
        self.counts["longest"] = max(self.counts["longest"], pyarrow.compute.max(lengths).as_py())
        if "target_ids" in batch.schema.names:
            targets = pyarrow.compute.list_value_length(batch["target_ids"])
            self.counts["target_tokens"] += pyarrow.compute.sum(targets).as_py()
            self.counts["longest_target"] = max(self.counts["longest_target"], pyarrow.compute.max(targets).as_py())
        if self.labelled and (lost := self.parser.cut_off(batch)):
            issues.add_all("cut_label", len(lost), cases(batch.take(pyarrow.array(lost[: DataIssues.SHOWN]))))
        self.counts["truncated"] += len(cut)
        issues.add_all("truncated", len(cut), cases(cut.slice(0, DataIssues.SHOWN)))
