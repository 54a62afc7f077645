"""A copy of the training state, which is written while training continues."""

from collections.abc import Iterator

import torch
from torch import Tensor


class Snapshot:
    """Reuses the memory of the last copy, since allocating takes longer than copying.

    Only one copy exists at a time: the next overwrites it, tensor by tensor in the same order.
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
