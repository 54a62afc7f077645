"""The communication and synchronisation of a step without logging, evaluation or saving: a job for each strategy.

torchrun --standalone --nproc-per-node 2 steady_state_runner.py JOBS.json RESULTS.json
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent))

import strategies_runner
from strategies_runner import Job, Observed

from snaketrain.strategies import base
from snaketrain.strategies.base import step_on_device
from snaketrain.strategies.shards import local_optimizer
from snaketrain.training.callbacks import Callback
from snaketrain.training.state import HostCopy, StepOutcome, TrainState
from snaketrain.training.step import take_step

STEADY = 4  # the first steps make the optimizers' state


class Recorder(TorchDispatchMode):
    """Records collectives and reads of scalars in the order in which Python or C++ calls them, with notes in between."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if DTensor in types:
            return NotImplemented  # the operations on its local tensors come here next
        name = func.overloadpacket.__name__
        if "c10d" in func.namespace and not name.startswith(("wait", "_wrap")):
            self.events.append(f"collective {name}")
        elif func is torch.ops.aten._local_scalar_dense.default:
            self.events.append("item")
        return func(*args, **(kwargs or {}))

    def noting(self, event: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, which adds a note when it returns."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            self.events.append(event)
            return result

        return noted


class Ends(Callback):
    """Where in the record each step ends."""

    def __init__(self, recorder: Recorder):
        self.recorder, self.of = recorder, dict[int, int]()

    def on_step_end(self, state: TrainState, outcome: StepOutcome) -> None:
        self.of[state.step] = len(self.recorder.events)


def recorded(job: Job) -> dict[str, list[str]]:
    return {"plain": plain(job.start()), "trainer": trained(job.start())}


def plain(trainer: Observed) -> list[str]:
    """Gradients and an update, without a trainer around them."""
    recorder, batches = Recorder(), trainer.plan.batches.of(0)
    note_parts(recorder, trainer)
    with recorder:
        for ids in batches[:STEADY]:
            recorder.events.clear()
            take_step(trainer.state, trainer.planned.load(ids, 0), len(ids), 1e-3)
    return recorder.events


def trained(trainer: Observed) -> list[str]:
    """From the end of one step to that of the next."""
    recorder, strategy = Recorder(), trainer.state.strategy
    ends, start, item = Ends(recorder), strategy.all_reduce_scalars_ahead, HostCopy.item
    note_parts(recorder, trainer)

    def started(*numbers: float) -> Callable[[], list[float]]:
        result = start(*numbers)
        recorder.events.append("scalars started")
        return cache(recorder.noting("scalars read", result))  # read again, it is there already

    strategy.all_reduce_scalars_ahead = started
    trainer.callbacks.callbacks, trainer.options = [ends], replace(trainer.options, log_every=1000)
    HostCopy.item = recorder.noting("of a host copy", item)
    try:
        with recorder:
            trainer.fit()
    finally:
        HostCopy.item = item
    return recorder.events[ends.of[STEADY - 1] : ends.of[STEADY]]


def note_parts(recorder: Recorder, trainer: Observed) -> None:
    strategy = trainer.state.strategy
    strategy.forward_backward = recorder.noting("forward_backward", strategy.forward_backward)
    strategy.update = recorder.noting("update", strategy.update)


def step_as_on_a_gpu(optimizer: torch.optim.Optimizer, norm: torch.Tensor) -> None:
    """On a CPU there is no device to wait for, and the host looks at the norm."""
    stepping = local_optimizer(optimizer)
    assert all(group["fused"] for group in stepping.param_groups)
    step_on_device(optimizer, stepping, norm)


if __name__ == "__main__":
    base.step_if_finite = step_as_on_a_gpu
    strategies_runner.KINDS = {"recorded": recorded}
    strategies_runner.main(*map(Path, sys.argv[1:]))
