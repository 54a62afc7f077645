"""Prepared texts, memory-mapped: nothing is read before a batch asks for it."""

import bisect
import hashlib
import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch._subclasses.fake_tensor import FakeTensor

from snaketrain.config.schema import Train
from snaketrain.config.schema.of_extras import hooks
from snaketrain.data.loading import open_table, split_files
from snaketrain.data.loading.streams import Stream, is_stream
from snaketrain.data.loading.training_data import Batch, TrainingData, make, open_items
from snaketrain.runtime.manifests import Manifest
from snaketrain.runtime.strict_json import JsonObject

NO_TARGET = -100


class ComputedLengths:
    """Lengths that are read or computed where they are asked for, so that memory does not grow with the data."""

    def __init__(self, count: int, between: Callable[[int, int], np.ndarray]):
        self.count, self.between = count, between

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, examples: slice, /) -> np.ndarray:
        start, stop, _ = examples.indices(self.count)
        return self.between(start, stop)


class ListColumn:
    """Lists of numbers, as views of the memory-mapped file; `take` would first copy the whole column, and `to_numpy` imports pandas."""

    def __init__(self, column: pa.ChunkedArray):
        self.chunks = column.chunks
        self.starts = [0, *itertools.accumulate(map(len, self.chunks))]
        self._views: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __getitem__(self, row: int) -> np.ndarray:
        chunk = bisect.bisect_right(self.starts, row) - 1
        values, offsets = self._view(chunk)
        place = row - self.starts[chunk]
        return values[offsets[place] : offsets[place + 1]]

    def lengths(self, start: int, stop: int) -> np.ndarray:
        parts = [np.zeros(0, np.int32)]
        for chunk in range(bisect.bisect_right(self.starts, start) - 1, len(self.chunks)):
            if (first := self.starts[chunk]) >= stop:
                break
            parts.append(np.diff(self._view(chunk)[1][max(0, start - first) : stop - first + 1]))
        return np.concatenate(parts)

    def flat(self) -> list[np.ndarray]:
        """All numbers one after another, in parts."""
        return [values[offsets[0] : offsets[-1]] for values, offsets in map(self._view, range(len(self.chunks)))]

    def _view(self, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        if chunk not in self._views:
            self._views[chunk] = np.from_dlpack(self.chunks[chunk].values), np.from_dlpack(self.chunks[chunk].offsets)
        return self._views[chunk]


class TextExamples:
    """One example per text."""

    def __init__(self, files: str | Path | Sequence[Path], pad_token_id: int):
        """`files`: one, or several whose examples follow one another."""
        self.table = open_table([files] if isinstance(files, str | Path) else files)
        self.pad_token_id = pad_token_id
        self.classes = int((self.table.schema.field("label").metadata or {}).get(b"classes", 0))
        lists = [field.name for field in self.table.schema if pa.types.is_list(field.type) and field.name != "label"]
        self.lists = {name: ListColumn(self.table[name]) for name in lists}
        self.lengths = ComputedLengths(len(self.table), self._lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, ids: Sequence[int], epoch: int | None = None) -> Batch:
        """The examples side by side, padded to the longest of them.

        `labels` are classes, a row of zeros and ones with one entry per class, or numbers; -100 or NaN where there is none.
        `target_ids`, for sequence to sequence, and lists of a label kind are padded with -100, which PyTorch's losses ignore.
        """
        tokens = self.rows("input_ids", ids)
        batch = {"input_ids": padded(tokens, self.pad_token_id), "attention_mask": padded(list(map(np.ones_like, tokens)), 0)}
        for name in (each for each in self.lists if each not in batch):
            batch[name] = padded(self.rows(name, ids), 0 if name == "token_type_ids" else NO_TARGET)
        return batch | {"labels": self._labels(ids), "ids": torch.tensor(ids)}

    @property
    def pairs(self) -> bool:
        return "token_type_ids" in self.lists

    def rows(self, name: str, ids: Sequence[int]) -> list[np.ndarray]:
        column = self.lists[name]
        return [column[int(i)] for i in ids]

    def column(self, name: str) -> list[object]:
        return list(self.table[name].to_pylist())

    def _lengths(self, start: int, stop: int) -> np.ndarray:
        parts = [self.lists[name].lengths(start, stop) for name in ("input_ids", "target_ids") if name in self.lists]
        return parts[0] if len(parts) == 1 else np.sum(parts, axis=0)

    def _labels(self, ids: Sequence[int]) -> torch.Tensor:
        column = self.table["label"]
        labels = [column[int(i)].as_py() for i in ids]
        if not pa.types.is_list(column.type):
            return torch.tensor([math.nan if label is None else label for label in labels])
        if not self.classes:
            return padded([np.array(label or (), np.int64) for label in labels], NO_TARGET)
        rows = np.zeros((len(labels), self.classes), dtype=np.float32)
        for row, label in zip(rows, labels, strict=True):
            row[slice(None) if label is None else np.array(label, int)] = math.nan if label is None else 1.0
        return torch.from_numpy(rows)


def padded(rows: list[np.ndarray], fill: int) -> torch.Tensor:
    whole = np.full((len(rows), max(1, max(map(len, rows)))), fill, dtype=np.int64)
    for number, row in enumerate(rows):
        whole[number, : len(row)] = row
    return torch.from_numpy(whole)


def sequences(batch: Batch, lengths: str, fills: Mapping[str, int]) -> tuple[torch.Tensor, torch.Tensor, Batch]:
    """Of examples whose lists have several sequences one after another, each as a row of its own: its example, its place among those of the
    example, and the columns of `fills`, padded with these. `lengths`: the column of the lengths of each example's sequences."""
    found, width = batch[lengths].clamp(min=0), batch["input_ids"].shape[1]
    numbers, most = torch.arange(width, device=found.device), found.shape[1]
    if most == 1 or isinstance(found, FakeTensor):  # in a plan tensors have no values: all examples have as many, of one length
        part, rows_of = -(-width // most), torch.arange(most * len(found), device=found.device)
        example, place = rows_of // most, rows_of % most
        starts, inside = place * part, batch["attention_mask"][example, :part] > 0
    else:
        example, place = found.nonzero(as_tuple=True)
        starts, inside = (found.cumsum(1) - found)[example, place], numbers[: int(found.max())] < found[example, place, None]
    at = example[:, None], (starts[:, None] + numbers[: inside.shape[1]]).where(inside, 0)
    rows = {name: batch[name][at].where(inside, fill) for name, fill in fills.items()}
    return example, place, rows | {"attention_mask": inside.long()}


# --- How texts fill the batches of a language model, where they are not padded one by one.
#
# An example is a block of the running text, or a whole text that shares its row with others.


class Blocks:
    """The running text, all texts one after another, in blocks of `length` tokens; only the last one is shorter.

    Each block begins with the last token of the block before, from which its first is predicted: every token of the text but the
    very first is predicted exactly once.
    """

    def __init__(self, examples: TextExamples, length: int):
        # views of the memory-mapped file, of which nothing is read before a block asks for it
        self.chunks = examples.lists["input_ids"].flat()
        self.starts = np.cumsum([0, *map(len, self.chunks)])
        self.length, self.pad_token_id = length, examples.pad_token_id
        # each block has `length` tokens to predict, the last one what is left
        predicted = max(0, self.tokens - 1)
        self.lengths = ComputedLengths(
            -(-predicted // length), lambda start, stop: np.minimum(length, predicted - np.arange(start, stop) * length)
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        return int(self.starts[-1])

    def batch(self, ids: Sequence[int], epoch: int | None = None) -> Batch:
        rows = [self.row(int(i)) for i in ids]
        return {"input_ids": padded(rows, self.pad_token_id), "attention_mask": padded(list(map(np.ones_like, rows)), 0)}

    def row(self, number: int) -> np.ndarray:
        return self.text(number * self.length, min((number + 1) * self.length + 1, self.tokens))

    def text(self, start: int, end: int) -> np.ndarray:
        """The tokens of the running text between two positions."""
        first, last = np.searchsorted(self.starts, [start, end - 1], side="right") - 1
        return np.concatenate([self.chunks[n][max(0, start - self.starts[n]) : end - self.starts[n]] for n in range(first, last + 1)])


class Packed:
    """Whole texts one after another, in rows with next to no padding.

    In each text `position_ids` start again from 0, which tells transformers that it must not see those before it in the row.
    """

    def __init__(self, examples: TextExamples):
        self.examples, self.lengths = examples, examples.lengths

    def __len__(self) -> int:
        return len(self.examples)

    def batch(self, ids: Sequence[int], epoch: int | None = None) -> Batch:
        tokens = self.examples.rows("input_ids", ids)
        shares = in_rows(np.array([len(text) for text in tokens]))
        batch = {"input_ids": _joined(tokens, shares, self.examples.pad_token_id)}
        batch["position_ids"] = _joined([np.arange(len(text)) for text in tokens], shares, 0)  # so each padding token is a text of its own
        if self.examples.pairs:
            batch["token_type_ids"] = _joined(self.examples.rows("token_type_ids", ids), shares, 0)
        return batch


def in_rows(lengths: np.ndarray) -> list[list[int]]:
    """Which texts share a row: rows about as long as the longest text, since attention costs the square of it, and nearly equal."""
    rows = max(1, int(lengths.sum()) // max(1, *lengths))
    shares: list[list[int]] = [[] for _ in range(rows)]
    filled = [(0, row) for row in range(rows)]
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        used, row = heapq.heappop(filled)  # the emptiest
        shares[row].append(number)
        heapq.heappush(filled, (used + int(lengths[number]), row))
    return shares


def _joined(texts: list[np.ndarray], shares: list[list[int]], fill: int) -> torch.Tensor:
    return padded([np.concatenate([texts[number] for number in share]) for share in shares], fill)


# --- Prepared data, opened for training and evaluation.

FIRST = 100_000  # examples whose lengths are compared


@dataclass(frozen=True)
class Splits:
    """What a training reads: the two sets, and what is known of the data."""

    train: TrainingData | Stream
    dev: TrainingData
    facts: JsonObject


def open_splits(data: Manifest, train: Train) -> Splits:
    return Splits(open_training(data, train), open_split(data, "dev", train), facts_of(data))


def open_training(data: Manifest, train: Train) -> TrainingData | Stream:
    if not data.facts["splits"]["train"].get("stream"):
        opened = open_split(data, "train", train)
        for drawn in hooks("sampling", "drawn"):  # of extras: what a training takes of the examples, see Drawn and Planned
            opened = drawn(opened, data, train)
        return opened
    source = data.facts["datasets"]["train"]
    dataset = make(source["use"], source["arguments"], "data.train")
    if not is_stream(dataset):
        raise SystemExit(
            f"data.train: {source['use']} was a stream when the data was prepared, and has a length now. Prepare the data again."
        )
    return Stream(dataset, source["use"], data.facts["fields"], train.seed, train.batch_size)


def facts_of(data: Manifest) -> JsonObject:
    """What is known of prepared data, and the folder of its tokenizer."""
    folder = data.folder / "tokenizer"
    return data.facts | ({"tokenizer_folder": str(folder)} if folder.is_dir() else {})


def open_split(data: Manifest, split: str, train: Train) -> TrainingData:
    """A split, of which the same tokens are predicted as in the training, so that losses can be compared."""
    if "datasets" in data.facts:
        return open_items(data, split, train.seed)
    examples = TextExamples(split_files(data, split), data.facts["pad_token_id"])
    if train.block_length is None or not len(examples):
        # an evaluation takes texts of like lengths, which have next to no padding, but pack badly; and prompts need a row each
        return Packed(examples) if train.packing and split == "train" else examples
    blocks = Blocks(examples, train.block_length)
    if not len(blocks):
        raise SystemExit(f"data.{split}: has {blocks.tokens} tokens, too few to predict one from another. Give it more text.")
    return blocks


def digest_of(data: TrainingData | Stream) -> str:
    """Tells training data apart by the number of its examples and the lengths of the first ones, without reading them all."""
    if data.lengths is None:
        return "a stream"
    return f"{len(data.lengths)} examples, {hashlib.sha256(np.asarray(data.lengths[:FIRST]).tobytes()).hexdigest()[:16]}"
