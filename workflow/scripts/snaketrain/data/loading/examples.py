"""Prepared texts, memory-mapped: nothing is read before a batch asks for it."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import torch

from snaketrain.data.loading.training_data import Batch
from snaketrain.data.prepared_files import open_table

NO_TARGET = -100


class ListLengths:
    """The lengths of the lists of a row, of one column or several together, read from the file where they are asked for."""

    def __init__(self, *columns: pa.ChunkedArray):
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, examples: slice, /) -> np.ndarray:
        start, stop, _ = examples.indices(len(self))
        parts = [pyarrow.compute.list_value_length(column.slice(start, stop - start)).to_numpy() for column in self.columns]
        lengths: np.ndarray = parts[0] if len(parts) == 1 else np.sum(parts, axis=0)
        return lengths


class TextExamples:
    """One example per text."""

    def __init__(self, files: str | Path | Sequence[Path], pad_token_id: int):
        """`files`: one, or several whose examples follow one another."""
        self.table = open_table([files] if isinstance(files, str | Path) else files)
        self.pad_token_id = pad_token_id
        self.classes = int((self.table.schema.field("label").metadata or {}).get(b"classes", 0))
        self.lengths = ListLengths(*(self.table[name] for name in ("input_ids", "target_ids") if name in self.table.column_names))

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, ids: Sequence[int], epoch: int | None = None) -> Batch:
        """The examples side by side, padded to the longest of them.

        `labels` are classes, a row of zeros and ones with one entry per class, or numbers; -100 or NaN where there is none.
        `target_ids`, for sequence to sequence, are padded with -100, which PyTorch's losses ignore.
        """
        tokens = self.rows("input_ids", ids)
        batch = {"input_ids": padded(tokens, self.pad_token_id), "attention_mask": padded(list(map(np.ones_like, tokens)), 0)}
        if self.pairs:
            batch["token_type_ids"] = padded(self.rows("token_type_ids", ids), 0)
        if "target_ids" in self.table.column_names:
            batch["target_ids"] = padded(self.rows("target_ids", ids), NO_TARGET)
        return batch | {"labels": self._labels(ids), "ids": torch.tensor(ids)}

    @property
    def pairs(self) -> bool:
        return "token_type_ids" in self.table.column_names

    def rows(self, name: str, ids: Sequence[int]) -> list[np.ndarray]:
        """Lists of a column, straight from the file; `take` would first copy the whole column."""
        column = self.table[name]
        return [column[int(i)].values.to_numpy() for i in ids]

    def column(self, name: str) -> list[object]:
        return list(self.table[name].to_pylist())

    def _labels(self, ids: Sequence[int]) -> torch.Tensor:
        column = self.table["label"]
        labels = [column[int(i)].as_py() for i in ids]
        if not pa.types.is_list(column.type):
            return torch.tensor([math.nan if label is None else label for label in labels])
        rows = np.zeros((len(labels), self.classes), dtype=np.float32)
        for row, label in zip(rows, labels, strict=True):
            row[slice(None) if label is None else np.array(label, int)] = math.nan if label is None else 1.0
        return torch.from_numpy(rows)


def padded(rows: list[np.ndarray], fill: int) -> torch.Tensor:
    """Rows of different lengths as one tensor."""
    whole = np.full((len(rows), max(1, max(map(len, rows)))), fill, dtype=np.int64)
    for number, row in enumerate(rows):
        whole[number, : len(row)] = row
    return torch.from_numpy(whole)
