"""Running out of memory in a step: what the batch was, what helps, and smaller pieces if they are wanted."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn


class Pieces:
    """In how many pieces each batch is worked off; more of them after the memory has run out, also for the attempts to come."""

    def __init__(self, folder: Path, wanted: int, may_grow: bool):
        self.path, self.may_grow = folder / "pieces.txt", may_grow
        self.number = max(wanted, int(self.path.read_text()) if may_grow and self.path.is_file() else wanted)

    def more(self) -> None:
        self.number *= 2
        self.path.write_text(str(self.number))


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))


def explain(error: BaseException, batch: dict[str, Any], pieces: int) -> str:
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in batch.items())
    return (
        f"Out of memory with a piece of a batch of {shapes}: {_first_line(error)} What helps, with the same result: "
        f"train.accumulate: {pieces * 2}, or compute.reduce_batch_on_oom: true, which finds it by itself; train.recompute_activations: true; "
        "more processes; train.strategy: fsdp."
    )


def explain_update(error: BaseException) -> str:
    """Half of the weights may be new and half of them old: nothing can be tried again from here."""
    return (
        f"Out of memory while the weights were updated: {_first_line(error)} Smaller pieces of a batch do not help here. What does: more "
        "processes, with train.strategy: zero1 or fsdp; to train fewer parameters (train.freeze); an optimizer that remembers less."
    )


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:300]


class Buffers:
    """What modules note down while they work, such as a batch norm's running mean: a step that is tried again must not count twice."""

    def __init__(self, modules: Iterable[nn.Module]):
        self._kept = [(buffer, buffer.detach().clone()) for module in modules for buffer in module.buffers()]

    @torch.no_grad()
    def restore(self) -> None:
        for buffer, kept in self._kept:
            buffer.copy_(kept)
