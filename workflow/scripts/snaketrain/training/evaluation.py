"""Evaluation: every example once, whatever the number of ranks and the size of the batches."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from snaketrain.data.loading.batches import MicroBatch, in_order, shard_batch
from snaketrain.data.loading.training_data import TrainingData
from snaketrain.tasks.base import Batch, Outputs, on_device
from snaketrain.training.state import TrainState

UseOutputs: TypeAlias = Callable[[MicroBatch, Batch, Outputs], None]


class Sums:
    """Sums of what is measured on each example, added over all ranks and divided once."""

    def __init__(self, state: TrainState):
        self.task, self.strategy = state.task, state.strategy
        self.totals: dict[str, Tensor] = {}

    def add(self, microbatch: MicroBatch, batch: Batch, outputs: Outputs) -> None:
        for name, value in self.task.evaluation_step(outputs, batch).items():
            self.totals[name] = self.totals.get(name, 0.0) + (torch.zeros_like(value) if microbatch.filler else value).double()

    def metrics(self) -> dict[str, float]:
        return self.task.measure({name: self.strategy.sum(total) for name, total in self.totals.items()})


def evaluate(
    state: TrainState, data: TrainingData, batch_size: int, tokens: int | None = None, goes_on: Callable[[], bool] = lambda: True
) -> dict[str, float] | None:
    """The metrics; None if `goes_on`, called after each batch with the same answer on all ranks, returned False."""
    sums = Sums(state)
    return sums.metrics() if compute_outputs(state, data, batch_size, tokens, sums.add, goes_on) else None


@torch.no_grad()
def compute_outputs(
    state: TrainState, data: TrainingData, batch_size: int, tokens: int | None, use: UseOutputs, goes_on: Callable[[], bool] = lambda: True
) -> bool:
    """Call `use` with the outputs for this rank's share of each batch; False if `goes_on` stopped it before the last one."""
    strategy, task, modules, whole = state.strategy, state.task, state.plain_modules(), True
    for module in state.modules.values():
        module.eval()

    def compute(ids: np.ndarray) -> None:
        (microbatch,) = shard_batch(ids, 1, strategy.data_parallel_rank, strategy.data_parallel_size)
        batch = on_device(data.batch(microbatch.ids), strategy.device)
        with strategy.autocast():
            use(microbatch, batch, task.outputs(modules, batch))

    def batches() -> Iterator[Callable[[], None]]:
        nonlocal whole
        for ids in in_order(data.lengths, batch_size, tokens):
            yield partial(compute, ids)
            if not goes_on():
                whole = False
                return

    task.validation_epoch(modules, batches())
    return whole
