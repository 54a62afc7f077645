"""Lets all ranks stop at the same batch, although a signal reaches them at different times."""

from collections.abc import Callable
from typing import Protocol

from snaketrain.strategies.base import Strategy


class StopRequest(Protocol):
    def requested(self) -> bool: ...


class NeverStop:
    def requested(self) -> bool:
        return False


class StopAgreement:
    """Polled once a batch. Each answer was all-reduced during the batch before, so that no rank waits for another."""

    def __init__(self, strategy: Strategy, stop: StopRequest):
        self.strategy, self.stop = strategy, stop
        self._exchanged: Callable[[], list[float]] | None = None

    def poll(self) -> bool:
        before, self._exchanged = self._exchanged, self.strategy.all_reduce_scalars_ahead(float(self.stop.requested()))
        return before is not None and before()[0] > 0
