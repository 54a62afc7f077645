"""Prepared examples, memory-mapped: nothing is read before a batch asks for it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import torch


class Examples:
    def __init__(self, path: str | Path, pad_token_id: int):
        self.table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        self.pad_token_id = pad_token_id
        self.classes = int((self.table.schema.field("label").metadata or {}).get(b"classes", 0))
        lengths = pyarrow.compute.list_value_length(self.table["input_ids"])
        self.lengths = lengths.to_numpy(zero_copy_only=False).astype(np.int64)

    def __len__(self) -> int:
        return self.table.num_rows

    def batch(self, ids: Sequence[int], epoch: int | None = None) -> dict[str, torch.Tensor]:
        """The examples side by side, padded to the longest of them.

        `labels` are classes, a row of zeros and ones with a place for each class, or numbers; where there are none, -100 or not a number.
        """
        rows = self.table.take(pa.array(ids, pa.int64()))
        batch = {"input_ids": self._padded(rows["input_ids"], self.pad_token_id)}
        batch["attention_mask"] = self._padded(rows["input_ids"], 0, ones=True)
        if "token_type_ids" in rows.column_names:
            batch["token_type_ids"] = self._padded(rows["token_type_ids"], 0)
        return batch | {"labels": self._labels(rows["label"]), "ids": torch.tensor(ids)}

    def column(self, name: str) -> list[Any]:
        return self.table[name].to_pylist()

    def _labels(self, column: pa.ChunkedArray) -> torch.Tensor:
        labels = column.to_pylist()
        if not pa.types.is_list(column.type):
            return torch.tensor([math.nan if label is None else label for label in labels])
        rows = np.zeros((len(labels), self.classes), dtype=np.float32)
        for row, label in zip(rows, labels, strict=True):
            row[slice(None) if label is None else np.array(label, int)] = math.nan if label is None else 1.0
        return torch.from_numpy(rows)

    @staticmethod
    def _padded(column: pa.ChunkedArray, fill: int, ones: bool = False) -> torch.Tensor:
        lists = column.to_pylist()
        padded = np.full((len(lists), max(1, max(map(len, lists)))), fill, dtype=np.int64)
        for row, items in enumerate(lists):
            padded[row, : len(items)] = 1 if ones else items
        return torch.from_numpy(padded)
