"""Evaluation: every example once, whatever the number of processes and the size of the batches."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from snaketrain.data.batches import Piece, deal, in_order
from snaketrain.tasks.base import Batch, on_device
from snaketrain.training.learner import Learner


@torch.no_grad()
def evaluate(
    learner: Learner, data: Any, batch_size: int, tokens: int | None = None, beat: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """Every example once, whatever the number of processes: sums are added up over all, and divided once."""
    sums: dict[str, Tensor] = {}
    for piece, batch in evaluation_batches(learner, data, batch_size, tokens):
        found = learner.task.evaluation_step(learner.plain_modules(), batch)
        beat()
        for name, value in found.items():
            sums[name] = sums.get(name, 0.0) + (torch.zeros_like(value) if piece.filler else value).double()
    return learner.task.measure({name: learner.strategy.sum(total) for name, total in sums.items()})


def evaluation_batches(learner: Learner, data: Any, batch_size: int, tokens: int | None = None) -> Iterator[tuple[Piece, Batch]]:
    """This process's share of the data, with all modules set to evaluate and in the strategy's precision."""
    for module in learner.modules.values():
        module.eval()
    strategy = learner.strategy
    for ids in in_order(data.lengths, batch_size, tokens):
        (piece,) = deal(ids, 1, strategy.data_rank, strategy.data_processes)
        with strategy.autocast():
            yield piece, on_device(data.batch(piece.ids), strategy.device)
