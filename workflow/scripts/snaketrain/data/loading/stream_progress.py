"""Where a stream is: what checkpoints save of it, and whether it really resumes there."""

import hashlib
import io
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch


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
        if self._resumed:
            self._resumed = False
            self._check_resumed(position)

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

    def _check_resumed(self, position: Position) -> None:
        if self.reached.next and position.first != self.reached.next:
            logging.warning(
                "data.train: %s did not resume where it was, after %d examples: its next example differs from the one before the interruption. The "
                "training continues with what it gives. Its `state_dict` must describe what was read up to the last `yield`; a shuffling buffer, for "
                "instance, is often not restored. Without `state_dict`, every pass must give the same examples in the same order.",
                self.name, self.reached.read,
            )  # fmt: skip


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
