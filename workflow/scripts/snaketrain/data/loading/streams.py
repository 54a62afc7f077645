"""The examples of an iterable dataset, which has neither a length nor numbers; read in order, in as many passes as a training takes.

Every rank reads all of them and collates its own share, so that the number of ranks changes nothing. A dataset with `state_dict` and
`load_state_dict`, by the convention of torchdata and of Hugging Face's datasets, resumes at the step of a checkpoint; any other is read
again from the beginning of its pass.
"""

import copy
import hashlib
import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch

from snaketrain.config.schema import Train
from snaketrain.config.schema.train import stream_training_problems
from snaketrain.data.loading.training_data import BadItem, Batch, Collating, reproducible, seed_all

# --- Where a stream is: what checkpoints save of it, and whether it really resumes there.


@dataclass(frozen=True)
class Position:
    """Where a stream is after a step."""

    read: int = 0  # examples, over all passes
    of_pass: int = 0  # examples of this pass
    number: int = 0  # of this pass
    state: Any = None  # of the dataset; none: it has no `state_dict`
    first: str = ""  # a digest of the step's first example
    next: str = ""  # a digest of the first example after the step, if that has been read


class StreamProgress:
    """The position after the last step done, which lies behind what was read ahead."""

    def __init__(self, name: str, restart: Callable[[Position], None]):
        """`restart` lets the stream begin at a position whenever it has not read as far."""
        self.name, self.restart = name, restart
        self.reached = Position()
        self._ahead: dict[int, Position] = {}  # by step
        self._resumed = False

    def loaded(self, step: int, position: Position) -> None:
        """The batch of a step has been read."""
        self._ahead[step] = position
        if self._resumed and self.reached.next and position.first != self.reached.next:
            logging.warning(
                "data.train: %s did not resume where it was, after %d examples: its next example differs from the one before the interruption. The "
                "training continues with what it gives. Its `state_dict` must describe what was read up to the last `yield`; a shuffling buffer, for "
                "instance, is often not restored. Without `state_dict`, every pass must give the same examples in the same order.",
                self.name, self.reached.read,
            )  # fmt: skip
        self._resumed = False

    def done(self, step: int) -> None:
        following = self._ahead.get(step + 1)
        self.reached = replace(self._ahead[step], next=following.first if following else "")
        self._ahead = {each: position for each, position in self._ahead.items() if each > step}
        self.restart(self.reached)

    def state_dict(self) -> Mapping[str, object]:
        return asdict(self.reached)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reached, self._resumed = Position(**state), True
        self.restart(self.reached)


def check_state(state: object, name: str) -> None:
    """Refuse what could be saved but not loaded again, before a training depends on it."""
    file = io.BytesIO()
    try:
        torch.save(state, file)
        torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    except Exception as error:
        raise SystemExit(
            f"data.train: the `state_dict` of {name} cannot be saved in a checkpoint: {str(error).splitlines()[0]} Let it hold numbers, strings, tensors, "
            "and lists and dictionaries of these."
        ) from None


def digest(example: object) -> str:
    """The same for equal examples in any process: of numbers, texts, tensors, arrays, and tuples and dictionaries of these."""
    hashed = hashlib.sha256()
    _hash(example, hashed.update)
    return hashed.hexdigest()[:16]


def _hash(value: object, update: Callable[[bytes], None]) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        update(f"{value.dtype} {tuple(value.shape)}".encode() + value.flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray | np.generic):
        update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    elif isinstance(value, Mapping):
        for key, part in value.items():
            update(repr(key).encode())
            _hash(part, update)
    elif isinstance(value, tuple | list):
        update(f"{len(value)} parts".encode())
        for part in value:
            _hash(part, update)
    else:
        plain = isinstance(value, str | bytes | int | float | None)  # another object may show its address
        update(repr(value).encode() if plain else type(value).__name__.encode())


KEPT_STEPS = 2  # whose examples stay in memory: a step that runs out of memory loads its batch again when the next one is read already
END = object()


@runtime_checkable
class IterableDataset(Protocol):
    """What a user's class must have. It may also have `state_dict`, `load_state_dict`, `set_epoch(pass)`, `collate(items)` and `training`."""

    def __iter__(self) -> Iterator[object]: ...


@runtime_checkable
class Resumable(Protocol):
    def state_dict(self) -> object: ...

    def load_state_dict(self, state: Any) -> None: ...


class Stream:
    """Examples by their position. They are asked for in ascending order, and those of the last KEPT_STEPS once more."""

    lengths = None  # unknown, which distinguishes it from numbered examples

    def __init__(self, dataset: IterableDataset, name: str, fields: list[str], seed: int, batch_size: int):
        self.dataset, self.name, self.seed, self.batch_size = dataset, name, seed, batch_size
        self.collate = Collating(dataset, name, fields)
        self.start = self.position = Position()  # where to begin, and what has been read
        self._examples: dict[int, object] = {}
        self._iterator: Iterator[object] | None = None
        if hasattr(dataset, "training"):
            dataset.training = True

    def restart(self, start: Position) -> None:
        """Begin there, unless more has been read already. It has not after a resume, nor where a worker process reads."""
        self.start = start

    def batch(self, ids: Sequence[int], epoch: int | None = None) -> Batch:
        if self.position.read < self.start.read:
            self.position, self._iterator, self._examples = self.start, None, {}
        with reproducible():
            while self.position.read <= max(ids):
                self._read_step()
            named = self.collate([self._examples[int(i)] for i in ids], ids)
        return named | {"ids": torch.tensor(ids)}

    def _read_step(self) -> None:
        """A whole batch, so that all ranks are at the same position after each step."""
        first, kept = self.position.read, self._examples
        for number in range(first, first + self.batch_size):
            seed_all(self.seed, number)  # what is drawn for an example does not depend on what else this process does
            kept[number] = self._next(number)
            kept.pop(number - KEPT_STEPS * self.batch_size, None)
        state = copy.deepcopy(self.dataset.state_dict()) if isinstance(self.dataset, Resumable) else None
        if first == self.start.read:
            check_state(state, self.name)
        self.position = replace(self.position, state=state, first=digest(kept[first]))

    def _next(self, number: int) -> object:
        try:
            self._iterator = self._iterator or self._resumed()
            example = next(self._iterator, END)
            if example is END:
                example = next(self._begin_pass(self.position.number + 1), END)
        except Exception as error:
            raise BadItem(f"{self.name}: the example after {number} others cannot be read: {type(error).__name__}: {error}") from error
        if example is END:
            raise SystemExit(
                f"data.train: {self.name} ends after {number} examples, and its next `iter()` gives none. Let each start from the beginning, or lower train.steps."
            )
        self.position = replace(self.position, read=number + 1, of_pass=self.position.of_pass + 1)
        return example

    def _begin_pass(self, number: int) -> Iterator[object]:
        self._set_epoch(number)
        self.position = replace(self.position, number=number, of_pass=0)
        self._iterator = iter(self.dataset)
        return self._iterator

    def _set_epoch(self, number: int) -> None:
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(number)

    def _resumed(self) -> Iterator[object]:
        """From the position of a checkpoint, or from the beginning."""
        start = self.position
        if start.read and isinstance(self.dataset, Resumable) and start.state is not None:
            self._set_epoch(start.number)
            self.dataset.load_state_dict(copy.deepcopy(start.state))
            return iter(self.dataset)
        if start.of_pass:
            logging.warning(
                "data.train: %s has no `state_dict`: it is read again past the %d examples of this pass", self.name, start.of_pass
            )
        seed_all(self.seed, start.read - start.of_pass)
        iterator = self._begin_pass(start.number)
        for number in range(start.read - start.of_pass, start.read):
            next(iterator, END)
            seed_all(self.seed, number + 1)
        self.position = start
        return iterator


class StreamBatches:
    """The batches of a stream: all of them are one epoch."""

    def __init__(self, size: int, steps: int):
        self.size, self.steps = size, steps

    @classmethod
    def of(cls, train: Train) -> "StreamBatches":
        if problems := list(stream_training_problems(train)):
            raise SystemExit("\n".join(problems))
        assert train.steps is not None, "it would be a problem"
        return cls(train.batch_size, train.steps)

    def count(self, epoch: int) -> int:
        return self.steps

    def batch(self, epoch: int, number: int) -> np.ndarray:
        return np.arange(number * self.size, (number + 1) * self.size)

    def after(self, step: int, last: int) -> Iterator[tuple[int, Iterator[tuple[int, np.ndarray]]]]:
        """As of `Batches`: for the only epoch its number and its steps with their batches."""
        if step < last:
            yield 0, ((number + 1, self.batch(0, number)) for number in range(step, last))


def is_stream(dataset: object) -> TypeGuard[IterableDataset]:
    """Whether its examples have no numbers. torch's class for that inherits a `__getitem__` that raises."""
    numbered = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return isinstance(dataset, torch.utils.data.IterableDataset) or (isinstance(dataset, IterableDataset) and not numbered)
