"""Evaluation: every example once, whatever the number of processes and the size of the batches."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from snaketrain.data.loading.batches import MicroBatch, in_order, shard_batch
from snaketrain.tasks.base import Batch, on_device
from snaketrain.training.learner import Learner


class Sums:
    """What is measured of each example, added up over all processes and divided once."""

    def __init__(self, learner: Learner):
        self.task, self.strategy = learner.task, learner.strategy
        self.totals: dict[str, Tensor] = {}

    def add(self, piece: MicroBatch, batch: Batch, outputs: Any) -> None:
        for name, value in self.task.evaluation_step(outputs, batch).items():
            self.totals[name] = self.totals.get(name, 0.0) + (torch.zeros_like(value) if piece.filler else value).double()

    def metrics(self) -> dict[str, float]:
        return self.task.measure({name: self.strategy.sum(total) for name, total in self.totals.items()})


@torch.no_grad()
def evaluate(
    learner: Learner, data: Any, batch_size: int, tokens: int | None = None, goes_on: Callable[[], bool] = lambda: True
) -> dict[str, float] | None:
    """None where `goes_on`, which is asked after each batch, says no; on all processes alike."""
    sums = Sums(learner)
    for piece, batch, outputs in all_outputs(learner, data, batch_size, tokens):
        sums.add(piece, batch, outputs)
        del outputs  # which may be large, and would stay until the next are there
        if not goes_on():
            return None
    return sums.metrics()


def all_outputs(learner: Learner, data: Any, batch_size: int, tokens: int | None = None) -> Iterator[tuple[MicroBatch, Batch, Any]]:
    """What the modules make of this process's share of the data, set to evaluate and in the strategy's precision."""
    for module in learner.modules.values():
        module.eval()
    strategy = learner.strategy
    for ids in in_order(data.lengths, batch_size, tokens):
        (piece,) = shard_batch(ids, 1, strategy.data_parallel_rank, strategy.data_parallel_size)
        batch = on_device(data.batch(piece.ids), strategy.device)
        with strategy.autocast():
            yield piece, batch, learner.task.outputs(learner.plain_modules(), batch)
