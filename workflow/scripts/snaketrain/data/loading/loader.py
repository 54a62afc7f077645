"""Loads the batches of coming steps: in this process, or ahead of time in worker processes. Their number changes no result."""

import logging
import math
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice

from snaketrain.data.loading.streams import Stream
from snaketrain.data.loading.training_data import Loadable
from snaketrain.data.loading.workers import Loaded, Request, load, load_in_workers

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
        sent: deque[Request] = deque()

        def sending() -> Iterator[Request]:
            for request in requests:
                sent.append(request)
                yield request

        with closing(load_in_workers(data, sending(), workers, self.pin_memory)) as batches:
            for loaded in batches:
                yield sent.popleft(), loaded

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
        """How many workers the data is worth."""
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
