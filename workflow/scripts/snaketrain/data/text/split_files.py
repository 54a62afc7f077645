"""The file of one split, and the facts counted while it is written."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow
import pyarrow.compute

from snaketrain.config.schema import Data
from snaketrain.data.sources.data_issues import DataIssues
from snaketrain.data.text.spooling import cases
from snaketrain.data.tokenization.tokenizer import token_schema
from snaketrain.labels import label_kind
from snaketrain.runtime.json_types import JsonObject


class SplitWriter:
    """Writes one split, with labels encoded, and counts as it goes."""

    def __init__(self, data: Data, names: list[str], class_of: dict[str, int], labelled: bool):
        kind = label_kind(data.label_kind)
        self.parser, self.tally, self.class_of, self.labelled = kind.parser(data), kind.tally(names), class_of, labelled
        fields = [("id", pyarrow.int64()), ("input_ids", pyarrow.list_(pyarrow.int32()))]
        # some rows alone do not show how many classes there are
        fields += [pyarrow.field("label", self.parser.prepared_type(), metadata={"classes": str(len(names))})]
        fields += [("text", pyarrow.string()), ("line", pyarrow.int64())]
        fields += [(name, pyarrow.string()) for name in list(data.text_columns)[1:]]
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
        self.counts["truncated"] += len(cut)
        issues.add_all("truncated", len(cut), cases(cut.slice(0, DataIssues.SHOWN)))
