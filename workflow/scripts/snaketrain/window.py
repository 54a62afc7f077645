"""Losses and speed over the steps since the last line of the journal, kept on the device and read late."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from torch import Tensor


class Window:
    def __init__(self, strategy: Any):
        self.strategy = strategy
        self.reopen()

    def reopen(self) -> None:
        """Begin anew; the clock too, so that evaluations and saves do not count as slow training."""
        self.losses: dict[str, Tensor] = {}
        self.examples, self.began = 0, time.perf_counter()

    def add(self, losses: dict[str, Tensor], batch: np.ndarray) -> None:
        self.examples += len(batch)
        for name, loss in losses.items():
            self.losses[name] = self.losses.get(name, 0.0) + loss

    def close(self) -> dict[str, float]:
        """The mean loss over all processes, and examples a second."""
        means = {name: float(self.strategy.sum(total) / self.examples) for name, total in self.losses.items()}
        figures = {"loss" if len(means) == 1 else f"loss_{name}": mean for name, mean in means.items()}
        figures["examples_per_second"] = self.examples / (time.perf_counter() - self.began)
        return figures


@contextlib.contextmanager
def each(contexts: Iterable[contextlib.AbstractContextManager]) -> Iterator[None]:
    """Several contexts as one."""
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
