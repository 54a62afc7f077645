"""The order of an epoch's examples: sections of a million, each shuffled by itself, so that memory does not grow with the data.

A small data set is one section, shuffled as a whole.
"""

import math
from collections.abc import Iterator

import numpy as np

from snaketrain.data.loading.training_data import Lengths

SECTION = 1 << 20  # examples that are shuffled together
BLOCK = 1 << 14  # neighbouring examples, which a section takes together: reading them stays local


class Order:
    """Blocks of neighbouring examples in random order, cut into sections of `size` examples, or a little more."""

    def __init__(self, lengths: Lengths, seed: int, epoch: int, multiple: int = 1):
        """Every section but the last has a number of examples that is a `multiple` of this one."""
        self.lengths, self.key = lengths, (seed, epoch)
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
        runs = sorted(self._runs(number))
        ids = np.concatenate([np.arange(start, end, dtype=_narrow(len(self.lengths))) for start, end in runs] or [np.arange(0)])
        lengths = np.concatenate([self.lengths[start:end] for start, end in runs] or [np.arange(0)])
        order = random.permutation(np.arange(len(ids), dtype=_narrow(len(ids))))
        return ids[order], lengths[order], random

    def _runs(self, section: int) -> Iterator[tuple[int, int]]:
        """The ranges of neighbouring examples that make up a section."""
        first, last = section * self.section_size, min((section + 1) * self.section_size, len(self.lengths))
        block = int(np.searchsorted(self.places, first, side="right")) - 1
        while first < last:
            start = int(self.starts[block]) + first - int(self.places[block])
            count = min(int(self.ends[block]) - start, last - first)
            yield start, start + count
            first, block = first + count, block + 1


def _narrow(count: int) -> np.dtype:
    """Every process holds a section's order."""
    return np.min_scalar_type(count)
