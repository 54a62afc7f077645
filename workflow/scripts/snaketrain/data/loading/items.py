"""The examples of a dataset class: any map-style dataset whose items are tensors, arrays or numbers, in tuples or by name."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from snaketrain.config.references import NotFound, load
from snaketrain.data.loading.randomness import one_thread, preserved_randomness, seed_all
from snaketrain.data.loading.training_data import BadItem, Batch, Collating
from snaketrain.runtime.credentials import resolved
from snaketrain.runtime.manifests import Manifest
from snaketrain.runtime.strict_json import JsonObject


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
        self.collate, self.seed = Collating(dataset, name, fields), seed
        lengths = getattr(dataset, "lengths", None)  # items of similar length are batched together
        self.lengths = np.ones(len(self.chosen), np.int64) if lengths is None else np.asarray(lengths)[self.chosen]

    def __len__(self) -> int:
        return len(self.chosen)

    def batch(self, ids: Sequence[int], epoch: int | None = None) -> Batch:
        """The items side by side, by the names of their fields."""
        if hasattr(self.dataset, "training"):
            self.dataset.training = epoch is not None
        with preserved_randomness(), one_thread():
            items = [self._item(int(number), epoch) for number in ids]
            named = self.collate(items, self.chosen[list(ids)].tolist())
        return named | {"ids": torch.tensor(ids)}

    def _item(self, number: int, epoch: int | None) -> object:
        seed_all(*((number,) if epoch is None else (self.seed, epoch, number)))
        chosen = int(self.chosen[number])
        try:
            return self.dataset[chosen]
        except Exception as error:
            raise BadItem(f"{self.name}: item {chosen} cannot be made: {type(error).__name__}: {error}") from error


def open_items(data: Manifest, split: str, seed: int) -> Items:
    source = data.facts["datasets"][split]
    dataset = make_dataset(source["use"], source["arguments"], f"data.{split}")
    return Items(dataset, source["use"], np.load(data.file(f"{split}.npy")), data.facts["fields"], seed)


def make_dataset(use: str, arguments: JsonObject, setting: str) -> Dataset:
    return numbered(make(use, arguments, setting), use, setting)


def make(use: str, arguments: JsonObject, setting: str) -> object:
    try:
        dataset: object = load(use)(**resolved(arguments))
    except NotFound as error:
        raise SystemExit(f"{setting}.use: {error}") from None
    except TypeError as error:
        raise SystemExit(f"{setting}: {use} cannot be made with the arguments {arguments}: {error}. Correct them.") from error
    return dataset


def numbered(dataset: object, use: str, setting: str) -> Dataset:
    if not isinstance(dataset, Dataset):
        but = "" if setting == "data.train" else " Only data.train can be a stream."
        raise SystemExit(
            f"{setting}.use: {use} has no length or no items (`__len__`, `__getitem__`): name a class whose items have numbers.{but}"
        )
    return dataset
