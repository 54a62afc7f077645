"""Which examples make up which step: pure functions of (lengths, seed, epoch, batch size), whatever the number of processes.

The position in the data is therefore one integer, the step; a resumed or rescaled training sees the same examples.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from snaketrain.data.loading.training_data import Lengths

if TYPE_CHECKING:
    from snaketrain.config.schema import Train

# --- The order of an epoch's examples: sections of a million, each shuffled by itself, so that memory does not grow with the data.
#
# A small data set is one section, shuffled as a whole.

SECTION = 1 << 20  # examples that are shuffled together
BLOCK = 1 << 14  # neighbouring examples, which a section takes together: reading them stays local


class Drawn(Lengths, Protocol):
    """The lengths of examples of which an epoch takes some several times, and others not at all; as many in each epoch as there are."""

    def of_epoch(self, seed: int, epoch: int) -> np.ndarray:
        """The epoch's examples, ascending."""
        ...


@runtime_checkable
class Planned(Lengths, Protocol):
    """The lengths of examples of which each step takes others than an epoch of all of them would."""

    def batches(self, train: "Train") -> "Batches": ...


class Order:
    """Blocks of neighbouring examples in random order, cut into sections of `size` examples, or a little more."""

    def __init__(self, lengths: Lengths, seed: int, epoch: int, multiple: int = 1):
        """Every section but the last has a number of examples that is a `multiple` of this one."""
        self.lengths, self.key = lengths, (seed, epoch)
        self.drawn: np.ndarray | None = lengths.of_epoch(seed, epoch) if hasattr(lengths, "of_epoch") else None
        if self.drawn is not None:  # what follows are places among them
            self.lengths = lengths[:][self.drawn]
        self.section_size = multiple * max(1, SECTION // multiple)
        self.sections = max(1, math.ceil(len(lengths) / self.section_size))
        starts = np.arange(0, len(lengths), BLOCK)
        if self.sections > 1:
            starts = np.random.default_rng([seed, epoch, 0, 1]).permutation(starts)
        self.starts, self.ends = starts, np.minimum(starts + BLOCK, len(lengths))
        self.places = np.cumsum([0, *(self.ends - self.starts)])  # of the blocks, one after another

    def section(self, number: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
        """The examples of a section in random order, their lengths, and a generator for what else is drawn for it."""
        random = np.random.default_rng([*self.key, number])
        runs = sorted(self._runs(number))  # as small integers: every process holds a section's order
        ids = np.concatenate([np.arange(start, end, dtype=np.min_scalar_type(len(self.lengths))) for start, end in runs] or [np.arange(0)])
        lengths = np.concatenate([self.lengths[start:end] for start, end in runs] or [np.arange(0)])
        order = random.permutation(np.arange(len(ids), dtype=np.min_scalar_type(len(ids))))
        return ids[order] if self.drawn is None else self.drawn[ids[order]], lengths[order], random

    def _runs(self, section: int) -> Iterator[tuple[int, int]]:
        """The ranges of neighbouring examples that make up a section."""
        first, last = section * self.section_size, min((section + 1) * self.section_size, len(self.lengths))
        block = int(np.searchsorted(self.places, first, side="right")) - 1
        while first < last:
            start = int(self.starts[block]) + first - int(self.places[block])
            count = min(int(self.ends[block]) - start, last - first)
            yield start, start + count
            first, block = first + count, block + 1


# --- The batches, and what each process computes of them.

WINDOW_BATCHES = 50  # batches that are sorted by length together: wide enough to save padding, narrow enough to stay random


@dataclass(frozen=True)
class MicroBatch:
    """What one process computes at a time. A filler repeats an example so that every rank takes part; it must not count."""

    ids: tuple[int, ...]
    filler: bool = False


class Batches:
    """The training batches of all epochs: each of `size` examples, or of as many as make up `tokens` tokens.

    Made section by section (see `Order`): a process holds one section's batches.
    """

    def __init__(self, lengths: Lengths, seed: int, size: int, tokens: int | None = None, padded: bool = True):
        self.lengths, self.seed, self.size = lengths, seed, size
        self.tokens, self.padded = tokens, padded  # whether a batch is padded to its longest example
        # steps follow one another: only the section at work is held
        self._order = lru_cache(1)(partial(Order, lengths, seed, multiple=1 if tokens else size * WINDOW_BATCHES))
        self._of_section = lru_cache(1)(self._make_section)
        self._section_ends = cache(self._find_section_ends)

    def begins(self, step: int) -> bytes:
        """What decides the batches from this step on, besides the training set and the settings that decide those of every step; empty if nothing new."""
        return b""

    def count(self, epoch: int) -> int:
        return int(self._section_ends(epoch)[-1])

    def of(self, epoch: int) -> list[np.ndarray]:
        """The epoch's batches, each sorted by length; padded batches hold examples of similar length. The last of a window may be smaller."""
        return [self.batch(epoch, number) for number in range(self.count(epoch))]

    def batch(self, epoch: int, number: int) -> np.ndarray:
        ends = self._section_ends(epoch)
        section = int(np.searchsorted(ends, number, side="right"))
        return self._of_section(epoch, section)[number - (int(ends[section - 1]) if section else 0)]

    def after(self, step: int, last: int) -> Iterator[tuple[int, Iterator[tuple[int, np.ndarray]]]]:
        """For each epoch its number and its steps with their batches, from the one after `step` up to `last`."""
        epoch, first = 0, 0
        while first < last:
            end = first + self.count(epoch)
            if end > step:
                yield epoch, ((number + 1, self.batch(epoch, number - first)) for number in range(max(first, step), min(end, last)))
            epoch, first = epoch + 1, end

    def _find_section_ends(self, epoch: int) -> np.ndarray:
        """How many batches of an epoch are made when each of its sections ends."""
        order = self._order(epoch)
        if self.tokens:  # only cutting shows how many batches a section has
            return np.cumsum([len(self._of_section(epoch, section)) for section in range(order.sections)])
        examples = np.minimum(np.arange(1, order.sections + 1) * order.section_size, len(self.lengths))
        return -(-examples // self.size)

    def _make_section(self, epoch: int, section: int) -> list[np.ndarray]:
        ids, lengths, random = self._order(epoch).section(section)
        window = WINDOW_BATCHES * (self.size if self.tokens is None else max(1, int(self.tokens / max(1.0, lengths.mean()))))
        parts = [slice(start, start + window) for start in range(0, max(1, len(ids)), window)]
        batches = [batch for part in parts for batch in self._cut(ids[part], lengths[part])]
        return [batches[i] for i in random.permutation(len(batches))]

    def _cut(self, ids: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
        if self.padded:  # cut in order of length; otherwise in the order drawn
            ids, lengths = by_length(ids, lengths)
        if self.tokens:
            parts = list(self._cut_by_tokens(lengths, self.tokens))
        else:
            parts = [slice(start, start + self.size) for start in range(0, len(ids), self.size)]
        return [ids[part] if self.padded else by_length(ids[part], lengths[part])[0] for part in parts]

    def _cut_by_tokens(self, lengths: np.ndarray, tokens: int) -> Iterator[slice]:
        start = total = 0
        for end, length in enumerate(lengths.tolist()):  # ascending where padded, so the newest is the longest
            total = length * (end - start + 1) if self.padded else total + length
            if total > tokens and end > start:
                yield slice(start, end)
                start, total = end, length
        yield slice(start, len(lengths))


def by_length(ids: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(lengths, kind="stable")
    return ids[order], lengths[order]


def in_order(lengths: Lengths, batch_size: int, tokens: int | None = None, padding: int | None = None) -> list[np.ndarray]:
    """Every example once, longest first, in batches limited by examples, by tokens, and by those of them that are padding.

    Without a limit on padding, memory runs out in the first batch or never.
    """
    order = np.argsort(-lengths[:], kind="stable")
    known, start = lengths[:][order], 0
    batches: list[np.ndarray] = []
    while start < len(order):
        longest = max(1, int(known[start]))
        size = batch_size if tokens is None else min(batch_size, max(1, tokens // longest))
        if padding is not None:
            size = int(np.searchsorted(np.cumsum(known[start] - known[start : start + size]), padding, side="right"))
        batches.append(order[start : start + size])
        start += size
    return batches


def shard_batch(batch: np.ndarray, micro_batches: int, rank: int, world_size: int) -> list[MicroBatch]:
    """One rank's share of a batch sorted by length. All ranks get the same number of micro-batches, with examples of similar lengths."""
    mine = batch[rank::world_size].tolist()
    parts = [tuple(mine[i::micro_batches]) for i in range(micro_batches)]
    return [MicroBatch(part) if part else MicroBatch((int(batch[0]),), filler=True) for part in parts]
