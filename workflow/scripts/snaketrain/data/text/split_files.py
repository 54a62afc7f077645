"""The file of one split, and what is counted while it is written."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute

from snaketrain.config.schema import Data
from snaketrain.data.sources.data_issues import DataIssues
from snaketrain.data.text.spooling import cases
from snaketrain.labels import label_kind


class SplitWriter:
    """Writes one split, its labels as the numbers of the classes, and counts along."""

    def __init__(self, data: Data, names: list[str], class_of: dict[str, int], labelled: bool):
        kind = label_kind(data.label_kind)
        self.parser, self.tally, self.class_of, self.labelled = kind.parser(data), kind.tally(names), class_of, labelled
        fields = [("id", pyarrow.int64()), ("input_ids", pyarrow.list_(pyarrow.int32()))]
        # a reader of some rows cannot tell from them how many classes there are
        fields += [pyarrow.field("label", self.parser.prepared_type(), metadata={"classes": str(len(names))})]
        fields += [("text", pyarrow.string()), ("line", pyarrow.int64())]
        if len(data.text) == 2:
            fields += [("text_pair", pyarrow.string()), ("token_type_ids", pyarrow.list_(pyarrow.int8()))]
        self.schema = pyarrow.schema(fields)
        self.facts = Counter(examples=0, tokens=0, longest=0, truncated=0)

    def write(self, batches: Iterable[pyarrow.RecordBatch], path: Path, odd: DataIssues) -> None:
        beside = path.with_name(f".{path.name}.new")
        with pyarrow.ipc.new_file(str(beside), self.schema) as file:
            for batch in batches:
                file.write_batch(self._as_prepared(batch))
                self._count(batch, odd)
        os.replace(beside, path)

    def all_facts(self) -> dict[str, Any]:
        return {"labelled": self.labelled} | dict(self.facts) | self.tally.facts()

    def _as_prepared(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        labels = [self.parser.missing] * len(batch)
        if self.labelled:
            labels = [self.parser.encode(label, self.class_of) for label in batch["label"].to_pylist()]
            for label in labels:
                self.tally.add(label)
        start = self.facts["examples"]
        columns = {name: batch[name] for name in batch.schema.names} | {"id": range(start, start + len(batch)), "label": labels}
        return pyarrow.record_batch([pyarrow.array(columns[field.name], field.type) for field in self.schema], schema=self.schema)

    def _count(self, batch: pyarrow.RecordBatch, odd: DataIssues) -> None:
        lengths, cut = pyarrow.compute.list_value_length(batch["input_ids"]), batch.filter(batch["truncated"])
        self.facts["examples"] += len(batch)
        self.facts["tokens"] += pyarrow.compute.sum(lengths).as_py()
        self.facts["longest"] = max(self.facts["longest"], pyarrow.compute.max(lengths).as_py())
        self.facts["truncated"] += len(cut)
        odd.add_all("truncated", len(cut), cases(cut.slice(0, DataIssues.EXAMPLES)))
