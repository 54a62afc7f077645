"""What training and evaluation need to know of data, whatever it is made of."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

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


# --- Items of a dataset class side by side: tensors by the names of their fields.


class BadItem(Exception):
    """An item that cannot be made or used; the message names it."""


class Collating:
    """With the dataset's own `collate`, if it has one. `fields` names the elements of items that are tuples."""

    def __init__(self, dataset: object, name: str, fields: list[str]):
        self.own = getattr(dataset, "collate", default_collate)
        self.name, self.fields = name, fields

    def __call__(self, items: list[object], numbers: Sequence[int]) -> Batch:
        try:
            collated: object = self.own(items)
        except Exception as error:
            shown = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
            raise BadItem(f"{self.name}: items {shown} cannot be collated: {type(error).__name__}: {error}") from error
        named = collated if isinstance(collated, dict) else self._named(collated)
        return {name: self._tensor(name, value) for name, value in named.items()}

    def _named(self, collated: object) -> Mapping[str, object]:
        values = collated if isinstance(collated, tuple | list) else [collated]
        if len(values) != len(self.fields):
            raise SystemExit(
                f"data.fields: {self.name} gives {len(values)} values for each item, and `fields` names {len(self.fields)}: "
                f"{', '.join(self.fields)}. Name each of them, in order."
            )
        return dict(zip(self.fields, values, strict=True))

    def _tensor(self, name: str, value: object) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            raise SystemExit(
                f"{self.name}: `{name}` of its items is a {type(value).__name__} after collating, not a tensor. Let the items hold "
                "tensors, arrays or numbers, or give the dataset a method `collate` that makes tensors of a list of items."
            )
        return value.to(torch.get_default_dtype()) if value.dtype == torch.float64 else value  # Python and numpy floats become float64
