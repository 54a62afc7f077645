"""Processes that load batches ahead of time, by torch's DataLoader.

They end with the process that started them, however it ends, and ignore the signals that ask a training to stop: it saves, and then
ends them itself.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from snaketrain.data.loading.batches import MicroBatch
from snaketrain.data.loading.collating import BadItem
from snaketrain.data.loading.stream_progress import Position
from snaketrain.data.loading.streams import Stream
from snaketrain.data.loading.training_data import Batch, Loadable
from snaketrain.runtime.processes import die_with_parent
from snaketrain.runtime.stopping import LAUNCHER_SIGNALS

COPIED_BYTES = 1 << 20


@dataclass(frozen=True)
class Request:
    """What this rank computes in a step of an epoch, or in a batch of an evaluation."""

    ids: np.ndarray  # the examples of the whole batch
    microbatches: list[MicroBatch]
    epoch: int | None = None
    step: int = 0


@dataclass(frozen=True)
class Loaded:
    microbatches: list[tuple[MicroBatch, Batch]]
    position: Position | None = None  # of a stream

    def __getstate__(self) -> dict[str, Any]:
        """On the way from a worker."""
        sent = [(each, {name: light(tensor) for name, tensor in batch.items()}) for each, batch in self.microbatches]
        return {"microbatches": sent, "position": self.position}

    def __setstate__(self, state: dict[str, Any]) -> None:
        found = [(each, {name: torch.as_tensor(part) for name, part in batch.items()}) for each, batch in state["microbatches"]]
        object.__setattr__(self, "microbatches", found)
        object.__setattr__(self, "position", state["position"])

    def pin_memory(self) -> "Loaded":
        """Called by torch's DataLoader; copies from pinned memory to a GPU do not wait."""
        pinned = [(each, {name: tensor.pin_memory() for name, tensor in batch.items()}) for each, batch in self.microbatches]
        return Loaded(pinned, self.position)


def light(tensor: torch.Tensor) -> torch.Tensor | np.ndarray:
    """A small tensor as an array, which is copied through the pipe: to share its memory takes half a millisecond in the process that trains."""
    if tensor.nbytes > COPIED_BYTES or not tensor.is_contiguous() or tensor.requires_grad or tensor.dtype == torch.bfloat16:
        return tensor
    return tensor.numpy()


@dataclass(frozen=True)
class Failure:
    """An error in a worker, on its way to the process that raises it."""

    cause: str
    traceback: str
    asked_to_exit: bool  # by a message that says what to do

    @classmethod
    def of(cls, error: Exception | SystemExit) -> "Failure":
        named = isinstance(error, BadItem | SystemExit)
        cause = str(error) if named else f"{type(error).__name__}: {error}"
        return cls(cause, traceback.format_exc(), isinstance(error, SystemExit))

    def error(self) -> BaseException:
        if self.asked_to_exit:
            return SystemExit(self.cause)
        error = BadItem(self.cause)
        error.add_note(f"In a worker process (compute.loader_workers):\n{self.traceback}")
        return error


def load(data: Loadable, request: Request) -> Loaded:
    microbatches = [(microbatch, data.batch(microbatch.ids, request.epoch)) for microbatch in request.microbatches]
    return Loaded(microbatches, data.position if isinstance(data, Stream) else None)


class Requested(Dataset[Loaded | Failure]):
    """For torch's DataLoader, whose indices are requests."""

    def __init__(self, data: Loadable):
        self.data = data

    def __getitem__(self, request: Request) -> Loaded | Failure:
        try:
            return load(self.data, request)
        except (Exception, SystemExit) as error:
            return Failure.of(error)


def load_in_workers(data: Loadable, requests: Iterator[Request], workers: int, pin_memory: bool) -> Generator[Loaded, None, None]:
    """In the order of the requests, of which two for each worker are read ahead.

    Workers are forked, so that they share the memory of the data set. A generator of its own keeps DataLoader from drawing a random number.
    """
    loader = DataLoader(
        Requested(data), batch_size=None, sampler=requests, num_workers=workers, collate_fn=unchanged, pin_memory=pin_memory,
        worker_init_fn=partial(begin, os.getpid()), multiprocessing_context="fork", generator=torch.Generator(),
    )  # fmt: skip
    before = multiprocessing.active_children()
    running = iter(loader)
    assert isinstance(running, _MultiProcessingDataLoaderIter), "the type for more than no worker"
    started = [process for process in multiprocessing.active_children() if process not in before]
    try:
        for loaded in running:
            if isinstance(loaded, Failure):
                raise loaded.error()
            yield loaded
    finally:
        running._shutdown_workers()  # which its destructor would call, but a traceback can keep it alive
        for process in started:
            if process.is_alive():  # it hangs in the user's code
                process.kill()


def begin(parent: int, worker: int) -> None:
    """In a new worker."""
    die_with_parent(parent)
    for name in LAUNCHER_SIGNALS.split(","):
        signal.signal(signal.Signals[name], signal.SIG_IGN)


def unchanged(loaded: Any) -> Any:  # whose type DataLoader takes for a list
    return loaded
