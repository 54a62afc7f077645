"""Compares how long ranks compute: all wait for the slowest, so that the time of a step does not tell which one that is.

What is timed are the forward passes of the model's blocks, in which most strategies exchange nothing. Where they do (tensor parallelism, experts,
context parallelism), a fast rank waits within them, and slow ranks are not found.
"""

import logging
import os
import platform
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from snaketrain.models.blocks import blocks
from snaketrain.runtime.journal import Journal
from snaketrain.strategies.base import Strategy
from snaketrain.strategies.distributed import all_gather
from snaketrain.strategies.fsdp import MeshBase
from snaketrain.training.callbacks import Callback
from snaketrain.training.state import StepOutcome, TrainState

TIMES_AS_LONG = 1.2  # as the median rank
OVER_STEPS, TIMED_EVERY = 100, 5
MOST = 0.9  # of the steps that are timed: a rank whose batches happened to be longer is not slow in most of them
T = TypeVar("T")


class SlowRanks(Callback):
    """On every rank."""

    observes_only = True

    def __init__(self, strategy: Strategy, journal: Journal):
        self.strategy, self.journal = strategy, journal
        self.places = all_gather((os.environ.get("SLURMD_NODENAME") or platform.node(), str(strategy.device)))
        self.timer = DeviceTimer() if strategy.device.type == "cuda" else Timer()
        self.forget()
        self.slow: set[int] = set()

    def on_train_start(self, state: TrainState) -> None:
        for module in state.plain_modules().values():
            for part in blocks(module) or [module]:
                self.timer.watch(part)
        self.timer.on = self.is_timed(state.step + 1)

    def on_step_end(self, state: TrainState, outcome: StepOutcome) -> None:
        if self.timer.on:
            self.timer.end_step()
        self.timer.on = self.is_timed(state.step + 1)

    def is_timed(self, step: int) -> bool:
        return step % TIMED_EVERY == 0

    def exchange(self, state: TrainState) -> list[float]:
        """This rank's time of one step, if there is a new one, among zeros for those of the others."""
        shares = [0.0] * len(self.places)
        shares[state.rank] = self.timer.next_seconds() or 0.0
        return shares

    def on_exchange(self, state: TrainState, sums: list[float]) -> None:
        if not any(sums):  # in most steps nothing is timed
            return
        for of_rank, seconds in zip(self.seconds, sums, strict=True):
            if seconds:
                of_rank.append(seconds * self.strategy.model_parallel_size)  # by which the sums of all ranks are divided
        if min(map(len, self.seconds)) >= OVER_STEPS // TIMED_EVERY:
            self.compare(state.step)
            self.forget()

    def forget(self) -> None:
        """Begin again with the seconds of each rank; where a rank never has any, those of the others must not pile up."""
        self.seconds: list[deque[float]] = [deque(maxlen=OVER_STEPS) for _ in self.places]

    def compare(self, step: int) -> None:
        medians = [statistics.median(of_rank) for of_rank in self.seconds]
        self.journal.write(
            "system", step=step, metrics={"compute_seconds_median": statistics.median(medians), "compute_seconds_max": max(medians)}
        )
        compared = dict(times_as_long(self.seconds, stages_of(self.strategy)))
        slow = {
            rank: each.times for rank, each in compared.items() if each.in_most_steps or (rank in self.slow and each.times > TIMES_AS_LONG)
        }
        for rank in sorted(slow.keys() - self.slow):
            host, device = self.places[rank]
            self.tell(
                step,
                f"rank {rank} on {host} ({device}) has computed {slow[rank]:.2f} times as long as the median rank, for {OVER_STEPS} steps",
            )
        for rank in sorted(self.slow - slow.keys()):
            self.tell(step, f"rank {rank} on {self.places[rank][0]} computes as fast as the others again")
        self.slow = set(slow)

    def tell(self, step: int, message: str) -> None:
        if self.journal.writes:
            logging.warning("%s", message)
            self.journal.write("warning", step=step, message=message)


def stages_of(strategy: Strategy) -> int:
    """Of a pipeline: ranks are compared with those that have the same blocks."""
    return strategy.shape.pipeline if isinstance(strategy, MeshBase) else 1


class Compared(NamedTuple):
    times: float  # as long as the median rank, in the median step
    in_most_steps: bool  # more than TIMES_AS_LONG


def times_as_long(seconds: Sequence[Iterable[float]], stages: int = 1) -> Iterator[tuple[int, Compared]]:
    """Of each rank. Of two ranks, the faster one is the median."""
    of_stage = len(seconds) // stages
    for first in range(0, len(seconds), of_stage):
        of_steps = list(zip(*seconds[first : first + of_stage], strict=False))  # at times a rank has one more
        for rank in range(of_stage):
            ratios = [step[rank] / statistics.median_low(step) for step in of_steps]
            in_most_steps = sum(ratio > TIMES_AS_LONG for ratio in ratios) >= MOST * len(ratios)
            yield first + rank, Compared(statistics.median(ratios), in_most_steps)


# --- The time of forward passes: by the host's clock, or on a GPU by events, which are read when they are over, so that the host need not wait.


class Timer:
    def __init__(self) -> None:
        self.on = False
        self.passes: list[tuple[Any, Any]] = []  # of this step: when each began and ended
        self.steps: deque[list[tuple[Any, Any]]] = deque()

    def watch(self, part: nn.Module) -> None:
        """Within what a strategy does before and after the part, such as gathering its parameters."""
        if part._compiled_call_impl is not None:  # the timing must not be compiled with it
            part._compiled_call_impl = self.timed(part, part._compiled_call_impl)
        else:
            part.forward = self.timed(part, part.forward)

    def timed(self, part: nn.Module, call: Callable[..., T]) -> Callable[..., T]:
        @wraps(call)
        def with_time(*args: Any, **options: Any) -> T:
            if not (self.on and part.training):
                return call(*args, **options)
            began = self.now()
            returned = call(*args, **options)
            self.passes.append((began, self.now()))
            return returned

        return with_time

    def end_step(self) -> None:
        if self.passes:
            self.steps.append(self.passes)
            self.passes = []

    def next_seconds(self) -> float | None:
        """Of the first step that has not been asked for yet, if it is over."""
        return (
            sum(map(self.between, *zip(*self.steps.popleft(), strict=True))) if self.steps and self.is_over(self.steps[0][-1][1]) else None
        )

    def now(self) -> Any:
        return time.perf_counter()

    def is_over(self, moment: Any) -> bool:
        return True

    def between(self, began: Any, ended: Any) -> float:
        return ended - began


class DeviceTimer(Timer):
    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch declares no types
        event.record()
        return event

    def is_over(self, moment: torch.cuda.Event) -> bool:
        return moment.query()  # type: ignore[no-untyped-call]

    def between(self, began: torch.cuda.Event, ended: torch.cuda.Event) -> float:
        milliseconds: float = began.elapsed_time(ended)
        return milliseconds / 1000.0
