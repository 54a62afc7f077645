"""A copy of a training's state that the training does not change any more, while it is being written."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


class Snapshot:
    """The memory of the last copy is used again: to get so much of it from the system takes longer than to copy."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def of(self, state: Any) -> Any:
        """Only one copy at a time is good: the next one is made in its place."""
        before, self._kept = iter(self._kept), []
        return tree_map_only(Tensor, lambda tensor: self._copy(tensor.detach(), next(before, None)), state)

    def _copy(self, tensor: Tensor, place: Tensor | None) -> Tensor:
        if place is None or (place.shape, place.dtype) != (tensor.shape, tensor.dtype):
            place = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._kept.append(place.copy_(tensor))
        return place
