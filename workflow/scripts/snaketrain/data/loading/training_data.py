"""What training and evaluation need to know of data, whatever it is made of."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from snaketrain.config.references import NotFound, load
from snaketrain.data.cells import BadData
from snaketrain.runtime.credentials import resolved
from snaketrain.runtime.manifests import Manifest
from snaketrain.runtime.strict_json import JsonObject

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


# --- What makes an item the same whichever process makes it, and whenever: its random numbers, and its rounding.

ALL_BITS = 2**64 - 1


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
def reproducible() -> Iterator[None]:
    """What is drawn inside does not affect the rest of the training, such as dropout; and as in a worker process there is one thread, since a sum over
    several is rounded differently."""
    states, threads = (torch.get_rng_state(), np.random.get_state(), random.getstate()), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


# --- Map-style datasets, whose items are tensors, arrays or numbers, in tuples or by name.


@runtime_checkable
class Dataset(Protocol):
    """What a user's class must have. It may also have `lengths`, `collate(items)`, `training`, `facts()`, `label_names`, `classes`, `texts`, `check()`
    and `precompute(numbers)`."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> object: ...


class Items:
    """`chosen` are the numbers, in the dataset, of the split's examples.

    What a dataset draws at random for an item (with torch, numpy or random) depends on the seed, the epoch and the item in
    training, and on the item alone in an evaluation: so the number of processes makes no difference, nor does resuming.
    If a dataset has an attribute `training`, it is set to whether this is training, as a module's is.
    `computed`: what was computed once for each of them, by names of further fields.
    """

    def __init__(
        self, dataset: Dataset, name: str, chosen: Sequence[int] | np.ndarray, fields: list[str], seed: int,
        computed: Mapping[str, np.ndarray] | None = None,
    ):  # fmt: skip
        self.dataset, self.name, self.chosen = dataset, name, np.asarray(chosen, np.int64)
        self.collate, self.seed, self.computed = Collating(dataset, name, fields), seed, computed or {}
        lengths = getattr(dataset, "lengths", None)  # items of similar length are batched together
        self.lengths = np.ones(len(self.chosen), np.int64) if lengths is None else np.asarray(lengths)[self.chosen]

    def __len__(self) -> int:
        return len(self.chosen)

    def batch(self, ids: Sequence[int], epoch: int | None = None) -> Batch:
        """The items side by side, by the names of their fields."""
        if hasattr(self.dataset, "training"):
            self.dataset.training = epoch is not None
        with reproducible():
            items = [self._item(int(number), epoch) for number in ids]
            named = self.collate(items, self.chosen[list(ids)].tolist())
        if both := named.keys() & self.computed.keys():
            raise BadData(f"{self.name} gives `{min(both)}` in its items and by `precompute`. Give one of the two another name.")
        computed = {field: torch.from_numpy(values[list(ids)]) for field, values in self.computed.items()}
        return named | computed | {"ids": torch.tensor(ids)}

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
    names = data.facts["splits"][split].get("computed", ())
    computed = {name: np.load(data.file(f"{split}.{name}.npy"), mmap_mode="r") for name in names}
    return Items(dataset, source["use"], np.load(data.file(f"{split}.npy")), data.facts["fields"], seed, computed)


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


def own_facts(dataset: object) -> JsonObject:
    """What a dataset says about itself: `facts()`, and the names of its classes in `label_names` or, as in torchvision, `classes`."""
    names = getattr(dataset, "label_names", None) or getattr(dataset, "classes", None) or []
    facts = getattr(dataset, "facts", None)
    return {"label_names": [str(name) for name in names]} | (facts() if callable(facts) else {})


def precomputed(dataset: object, use: str, numbers: np.ndarray) -> dict[str, np.ndarray]:
    """By the names of fields, what the dataset computes once for these items, with a row for each."""
    precompute = getattr(dataset, "precompute", None)
    given: Mapping[str, object] = precompute(numbers) if callable(precompute) else {}
    found = {field: np.asarray(values) for field, values in given.items()}
    for field, values in found.items():
        if not field.isidentifier():
            raise SystemExit(f"{use}: `precompute` names a field {field!r}. Give it a name of letters and digits.")
        if values.dtype.kind not in "biuf" or values.shape[:1] != numbers.shape:
            raise SystemExit(
                f"{use}: `precompute` gives, as `{field}` of {len(numbers)} items, an array of {values.dtype} with the shape {values.shape}. "
                "Give numbers, and a row for each item, in order."
            )
    return {field: values.astype(np.float32) if values.dtype == np.float64 else values for field, values in found.items()}


def described(batch: Batch) -> JsonObject:
    """The shapes and types of an item's fields."""
    fields = {name: value for name, value in batch.items() if name != "ids"}
    return {name: {"shape": list(value.shape[1:]), "type": str(value.dtype).removeprefix("torch.")} for name, value in fields.items()}
