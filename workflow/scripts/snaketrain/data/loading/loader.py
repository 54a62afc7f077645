"""Loads the batches of coming steps: in this process, or ahead of time in worker processes. Their number changes no result."""

import logging
import math
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from snaketrain.data.loading.batches import MicroBatch
from snaketrain.data.loading.streams import Position, Stream
from snaketrain.data.loading.training_data import BadItem, Batch, Loadable
from snaketrain.runtime.processes import LAUNCHER_SIGNALS, die_with_parent

# --- Processes that load batches ahead of time, by torch's DataLoader.
#
# They end with the process that started them, however it ends, and ignore the signals that ask a training to stop: it saves, and then
# ends them itself.

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
    request: Request
    microbatches: list[tuple[MicroBatch, Batch]]
    position: Position | None = None  # of a stream

    def __getstate__(self) -> dict[str, Any]:
        """On the way from a worker."""
        sent = [(each, {name: light(tensor) for name, tensor in batch.items()}) for each, batch in self.microbatches]
        return vars(self) | {"microbatches": sent}

    def __setstate__(self, state: dict[str, Any]) -> None:
        found = [(each, {name: torch.as_tensor(part) for name, part in batch.items()}) for each, batch in state["microbatches"]]
        vars(self).update(state | {"microbatches": found})

    def pin_memory(self) -> "Loaded":
        """Called by torch's DataLoader; copies from pinned memory to a GPU do not wait."""
        pinned = [(each, {name: tensor.pin_memory() for name, tensor in batch.items()}) for each, batch in self.microbatches]
        return replace(self, microbatches=pinned)


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
    return Loaded(request, microbatches, data.position if isinstance(data, Stream) else None)


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
    die_with_parent(parent)
    for name in LAUNCHER_SIGNALS.split(","):
        signal.signal(signal.Signals[name], signal.SIG_IGN)


def unchanged(loaded: Any) -> Any:  # whose type DataLoader takes for a list
    return loaded


TRIAL, WARM_UP = 8, 2  # batches that `auto` loads in this process before it decides, and those of them that it does not time
WORTH_WORKERS = 0.02  # of the time is spent waiting for data: workers pay off
WATCHED, WORTH_A_WARNING = 50, 0.1  # batches, and the share of their time after which a warning names the setting


@dataclass
class Waiting:
    """The seconds that loading takes in this process, and those from one batch to loading the next."""

    loading: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        loading, between = self._sums()
        return loading / (loading + between) if loading else 0.0

    @property
    def workers_to_keep_up(self) -> int:
        loading, between = self._sums()
        return math.ceil(loading / max(between, 1e-6)) + 1

    def _sums(self) -> tuple[float, float]:
        return sum(self.loading[WARM_UP:]), sum(self.between[WARM_UP:])


class Loader:
    """In `workers` processes; with `auto` in at most so many, and in none where the training hardly waits for data."""

    def __init__(self, workers: int = 0, auto: bool = False, pin_memory: bool = False):
        self.workers, self.auto, self.pin_memory = workers, auto, pin_memory
        self.found: dict[Loadable, int] = {}  # by `auto`, for each data set
        self.warned = False

    @classmethod
    def of(cls, option: str, pin_memory: bool = False) -> "Loader":
        """`option`: a number of workers, or `auto:4` for at most four."""
        word, _, most = option.rpartition(":")
        return cls(int(most), word == "auto", pin_memory)

    def load(self, data: Loadable, requests: Iterable[Request]) -> Generator[tuple[Request, Loaded], None, None]:
        """Each request with what it asks for. The requests are read ahead."""
        asked = iter(requests)
        workers = min(1, self.workers) if isinstance(data, Stream) else self.workers  # a stream is read in order, by one process
        if self.auto and not isinstance(data, Stream):  # which could not be handed over to a worker once it has begun
            if data not in self.found:
                yield from self._here(data, islice(asked, TRIAL), waiting := Waiting())
                self.found[data] = self.worth(waiting)
            workers = self.found[data]
        first = list(islice(asked, workers))  # fewer batches than workers need fewer of them
        if not first:
            yield from self._here(data, asked, Waiting())
        else:
            yield from self._in_workers(data, chain(first, asked), len(first))

    def _in_workers(self, data: Loadable, requests: Iterator[Request], workers: int) -> Iterator[tuple[Request, Loaded]]:
        with closing(load_in_workers(data, requests, workers, self.pin_memory)) as batches:
            for loaded in batches:
                yield loaded.request, loaded

    def _here(self, data: Loadable, requests: Iterator[Request], waiting: Waiting) -> Iterator[tuple[Request, Loaded]]:
        for number, request in enumerate(requests):
            began = time.perf_counter()
            loaded = load(data, request).pin_memory() if self.pin_memory else load(data, request)
            ready = time.perf_counter()
            yield request, loaded
            if number < WATCHED:
                waiting.loading.append(ready - began)
                waiting.between.append(time.perf_counter() - ready)
            elif number == WATCHED:
                self._perhaps_warn(waiting)

    def worth(self, waiting: Waiting) -> int:
        if waiting.share <= WORTH_WORKERS:
            return 0
        workers = min(self.workers, waiting.workers_to_keep_up)
        logging.info("%.0f %% of the time went by waiting for data: from now on %d processes load it", 100 * waiting.share, workers)
        return workers

    def _perhaps_warn(self, waiting: Waiting) -> None:
        if waiting.share > WORTH_A_WARNING and not self.auto and not self.warned:
            self.warned = True
            logging.warning(
                "%.0f %% of the time goes by waiting for data. With compute.loader_workers: auto, worker processes load it, with the same result.",
                100 * waiting.share,
            )
