"""What training and evaluation need to know of data, whatever it is made of."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from torch import Tensor

Batch: TypeAlias = dict[str, Tensor]


class Lengths(Protocol):
    """The length of each example, such as an array of them, or of one that reads them from a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, examples: slice, /) -> np.ndarray: ...


class Loadable(Protocol):
    """Examples of which batches are made: numbered ones, or those of a stream by their position."""

    def batch(self, ids: Sequence[int], epoch: int | None = None) -> Batch:
        """The examples with these numbers, side by side; without an `epoch` for an evaluation."""
        ...


class TrainingData(Loadable, Protocol):
    """Numbered examples, such as texts (TextExamples, Blocks, Packed) or the items of a dataset class (Items)."""

    @property
    def lengths(self) -> Lengths:
        """By which batches are made; ones where examples have none."""
        ...

    def __len__(self) -> int: ...
