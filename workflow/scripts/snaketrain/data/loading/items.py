"""The examples of a dataset class: any map-style dataset whose items are tensors, arrays or numbers, in tuples or by name."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.data import default_collate

from snaketrain.config.references import NotFound, load
from snaketrain.data.loading.training_data import Batch
from snaketrain.runtime.json_types import JsonObject
from snaketrain.runtime.manifests import Manifest

ALL_BITS = 2**64 - 1


@runtime_checkable
class Dataset(Protocol):
    """What a user's class must have. It may also have `lengths`, `collate(items)`, `training`, `facts()`, `label_names` and `classes`."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> object: ...


class Items:
    """`chosen` are the numbers, in the dataset, of the split's examples.

    What a dataset draws at random for an item (with torch, numpy or random) depends on the seed, the epoch and the item in
    training, and on the item alone in an evaluation: so the number of processes makes no difference, nor does resuming.
    If a dataset has an attribute `training`, it is set to whether this is training, as a module's is.
    """

    def __init__(self, dataset: Dataset, name: str, chosen: Sequence[int] | np.ndarray, fields: list[str], seed: int):
        self.dataset, self.name, self.chosen = dataset, name, np.asarray(chosen, np.int64)
        self.fields, self.seed = fields, seed
        lengths = getattr(dataset, "lengths", None)  # items of similar length are batched together
        self.lengths = np.ones(len(self.chosen), np.int64) if lengths is None else np.asarray(lengths)[self.chosen]

    def __len__(self) -> int:
        return len(self.chosen)

    def batch(self, ids: Sequence[int], epoch: int | None = None) -> Batch:
        """The items side by side, by the names of their fields."""
        if hasattr(self.dataset, "training"):
            self.dataset.training = epoch is not None
        with preserved_randomness():
            items = [self._item(int(number), epoch) for number in ids]
            collated: object = getattr(self.dataset, "collate", default_collate)(items)
        named = collated if isinstance(collated, dict) else self._named(collated)
        return {name: self._tensor(name, value) for name, value in named.items()} | {"ids": torch.tensor(ids)}

    def _item(self, number: int, epoch: int | None) -> object:
        seed_all(*((number,) if epoch is None else (self.seed, epoch, number)))
        return self.dataset[int(self.chosen[number])]

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


def open_items(data: Manifest, split: str, seed: int) -> Items:
    source = data.facts["datasets"][split]
    dataset = make_dataset(source["use"], source["arguments"], f"data.{split}")
    return Items(dataset, source["use"], np.load(data.file(f"{split}.npy")), data.facts["fields"], seed)


def make_dataset(use: str, arguments: JsonObject, setting: str) -> Dataset:
    try:
        dataset: object = load(use)(**arguments)
    except NotFound as error:
        raise SystemExit(f"{setting}.use: {error}") from None
    except TypeError as error:
        raise SystemExit(f"{setting}: {use} cannot be made with the arguments {arguments}: {error}. Correct them.") from error
    if not isinstance(dataset, Dataset):
        raise SystemExit(
            f"{setting}.use: {use} has no length or no items (`__len__`, `__getitem__`): name a class whose items have numbers."
        )
    return dataset


def seed_all(*parts: int) -> None:
    seed = 0
    for part in parts:
        seed = spread(seed + part)
    torch.default_generator.manual_seed(seed >> 1)  # the CPU's alone, where items are made
    np.random.seed(seed >> 32)
    random.seed(seed)


def spread(number: int) -> int:
    """Splitmix64: maps neighbouring numbers to unrelated ones, much faster than numpy's SeedSequence."""
    mixed = (number + 0x9E3779B97F4A7C15) & ALL_BITS
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & ALL_BITS
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & ALL_BITS
    return mixed ^ (mixed >> 31)


@contextmanager
def preserved_randomness() -> Iterator[None]:
    """What is drawn inside does not affect the rest of the training, such as dropout."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
