"""Which examples make up which step: pure functions of (lengths, seed, epoch, batch size), whatever the number of processes.

The position in the data is therefore one integer, the step; a resumed or rescaled training sees the same examples.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

WINDOW_BATCHES = 50  # batches that are sorted by length together: wide enough to save padding, narrow enough to stay random


@dataclass(frozen=True)
class MicroBatch:
    """What one process computes at a time. A filler repeats an example so that every rank takes part; it must not count."""

    ids: tuple[int, ...]
    filler: bool = False


class Batches:
    """The training batches of all epochs: each of `size` examples, or of as many as make up `tokens` tokens."""

    def __init__(self, lengths: Sequence[int] | np.ndarray, seed: int, size: int, tokens: int | None = None, padded: bool = True):
        self.lengths, self.seed, self.size = np.asarray(lengths), seed, size
        self.tokens, self.padded = tokens, padded  # whether a batch is padded to its longest example
        self._made: tuple[int, list[np.ndarray]] = (-1, [])

    def count(self, epoch: int) -> int:
        return len(self.of(epoch)) if self.tokens else -(-len(self.lengths) // self.size)

    def of(self, epoch: int) -> list[np.ndarray]:
        """The epoch's batches, each sorted by length; padded batches hold examples of similar length. The last of a window may be smaller."""
        if self._made[0] != epoch:
            random = np.random.default_rng([self.seed, epoch])
            number = len(self.lengths)
            order = random.permutation(np.arange(number, dtype=np.min_scalar_type(number)))  # narrow, as every process holds all of it
            batches = [batch for part in np.split(order, range(self._window, len(order), self._window)) for batch in self._cut(part)]
            self._made = epoch, [batches[i] for i in random.permutation(len(batches))]
        return self._made[1]

    def after(self, step: int, last: int) -> Iterator[tuple[int, Iterator[tuple[int, np.ndarray]]]]:
        """For each epoch its number and its steps with their batches, from the one after `step` up to `last`."""
        epoch, first = 0, 0
        while first < last:
            end = first + self.count(epoch)
            if end > step:
                yield epoch, ((number + 1, self.of(epoch)[number - first]) for number in range(max(first, step), min(end, last)))
            epoch, first = epoch + 1, end

    @property
    def _window(self) -> int:
        """Examples that are sorted by length together."""
        size = self.size if self.tokens is None else max(1, int(self.tokens / max(1.0, self.lengths.mean())))
        return size * WINDOW_BATCHES

    def _cut(self, ids: np.ndarray) -> Iterator[np.ndarray]:
        if self.padded:  # cut in order of length; otherwise in the order drawn
            ids = self._by_length(ids)
        batches = self._cut_by_tokens(ids, self.tokens) if self.tokens else (ids[i : i + self.size] for i in range(0, len(ids), self.size))
        return batches if self.padded else map(self._by_length, batches)

    def _by_length(self, ids: np.ndarray) -> np.ndarray:
        return ids[np.argsort(self.lengths[ids], kind="stable")]

    def _cut_by_tokens(self, ids: np.ndarray, tokens: int) -> Iterator[np.ndarray]:
        start = total = 0
        for end, length in enumerate(self.lengths[ids].tolist()):  # ascending where padded, so the newest is the longest
            total = length * (end - start + 1) if self.padded else total + length
            if total > tokens and end > start:
                yield ids[start:end]
                start, total = end, length
        yield ids[start:]


def in_order(lengths: Sequence[int] | np.ndarray, batch_size: int, tokens: int | None = None) -> list[np.ndarray]:
    """Every example once, longest first, so that memory runs out in the first batch or never; limited by examples and by tokens."""
    order, start = np.argsort(-np.asarray(lengths), kind="stable"), 0
    batches: list[np.ndarray] = []
    while start < len(order):
        size = batch_size if tokens is None else min(batch_size, max(1, tokens // max(1, int(lengths[order[start]]))))
        batches.append(order[start : start + size])
        start += size
    return batches


def shard_batch(batch: np.ndarray, micro_batches: int, rank: int, world_size: int) -> list[MicroBatch]:
    """One rank's share of a batch sorted by length. All ranks get the same number of micro-batches, with examples of similar lengths."""
    mine = batch[rank::world_size].tolist()
    parts = [tuple(mine[i::micro_batches]) for i in range(micro_batches)]
    return [MicroBatch(part) if part else MicroBatch((int(batch[0]),), filler=True) for part in parts]
