"""A copy of a training's state that the training does not change any more, while it is being written."""

from collections.abc import Iterator

import torch
from torch import Tensor


class Snapshot:
    """The memory of the last copy is used again: to get so much of it from the system takes longer than to copy.

    Only one copy at a time is good: the next one is made in its place, tensor by tensor in the same order.
    """

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._before: Iterator[Tensor] = iter(())

    def begin(self) -> None:
        self._before, self._kept = iter(self._kept), []

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy on the CPU."""
        place = next(self._before, None)
        if place is None or (place.shape, place.dtype) != (tensor.shape, tensor.dtype):
            place = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._kept.append(place.copy_(tensor.detach()))
        return place
