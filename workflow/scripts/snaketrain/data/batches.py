"""Which examples make up which step: pure functions of (lengths, seed, epoch, batch size), on any number of processes.

So the position in the data is one integer, the step; a resumed or rescaled training sees the same examples.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

WINDOW_BATCHES = 50  # batches that are sorted by length together: wide enough to save padding, narrow enough to stay random


@dataclass(frozen=True)
class Piece:
    """What one process works on at a time. A filler repeats an example so that all processes take part; it must not count."""

    ids: tuple[int, ...]
    filler: bool = False


def epoch_batches(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The epoch's batches in their order, each of examples of similar length; only the shortest batch may be smaller."""
    lengths = np.asarray(lengths)
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    window = batch_size * WINDOW_BATCHES
    batches: list[np.ndarray] = []
    for start in range(0, len(order), window):
        part = order[start : start + window]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
    return [batches[i] for i in random.permutation(len(batches))]


def in_order(lengths: Sequence[int], batch_size: int) -> list[np.ndarray]:
    """Every example once, longest first, so that memory runs out in the first batch or never."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def deal(batch: np.ndarray, lengths: Sequence[int], pieces: int, rank: int, world_size: int) -> list[Piece]:
    """The share of one process in a batch, in `pieces`. All ranks get as many pieces, and examples of equal lengths."""
    by_length = batch[np.argsort(np.asarray(lengths)[batch], kind="stable")]
    mine = by_length[rank::world_size]
    parts = [tuple(map(int, mine[i::pieces])) for i in range(pieces)]
    return [Piece(part) if part else Piece((int(batch[0]),), filler=True) for part in parts]


def steps(lengths: Sequence[int], batch_size: int, seed: int, first: int, last: int) -> Iterator[tuple[int, np.ndarray]]:
    """The batches of the steps after `first` up to `last`, over as many epochs as that takes."""
    per_epoch = steps_per_epoch(len(lengths), batch_size)
    epoch, batches = -1, []
    for step in range(first, last):
        if step // per_epoch != epoch:
            epoch = step // per_epoch
            batches = epoch_batches(lengths, batch_size, seed, epoch)
        yield step + 1, batches[step % per_epoch]


def steps_per_epoch(examples: int, batch_size: int) -> int:
    return -(-examples // batch_size)
