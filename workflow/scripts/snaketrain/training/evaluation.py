"""Evaluation: every example once, whatever the number of ranks and the size of the batches."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from snaketrain.data.loading.batches import MicroBatch, in_order, shard_batch
from snaketrain.data.loading.loader import Loader, Request
from snaketrain.data.loading.training_data import Batch, TrainingData
from snaketrain.strategies.base import Strategy
from snaketrain.tasks.base import Outputs, on_device
from snaketrain.tasks.metrics import Measuring
from snaketrain.training.metric_window import check_names
from snaketrain.training.state import TrainState
from snaketrain.training.step import explain_evaluation, is_out_of_memory

# --- Rows of all ranks in the order of the examples: each example once, whatever the number of ranks.

Rows = dict[str, np.ndarray]


def as_array(rows: torch.Tensor | list[str]) -> np.ndarray:
    if isinstance(rows, list):
        return np.array(rows, np.str_)
    rows = rows.float() if rows.dtype == torch.bfloat16 else rows  # numpy has no bfloat16
    return rows.cpu().numpy()


def merged(parts: list[Rows], examples: int) -> Rows:
    """The rows of all ranks in the order of the examples, each of which must occur exactly once."""
    parts = [part for part in parts if len(part["ids"])]
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {"ids": np.empty(0, np.int64)}
    order = np.argsort(rows["ids"], kind="stable")
    if not np.array_equal(rows["ids"][order], np.arange(examples)):
        raise SystemExit(
            f"{len(order)} rows were predicted for {examples} examples: some were evaluated twice or not at all. Please report this."
        )
    return {name: values[order] for name, values in rows.items()}


UseOutputs: TypeAlias = Callable[[MicroBatch, Batch, Outputs], None]


class Measurements:
    """What is measured on each example: sums are added over all ranks and divided once, rows are gathered in the order of the examples."""

    def __init__(self, state: TrainState, examples: int):
        self.strategy, self.examples = state.strategy, examples
        self.measuring = Measuring(state.task)
        self.ids: list[int] = []

    def add(self, microbatch: MicroBatch, batch: Batch, outputs: Outputs) -> None:
        self.measuring.add(outputs, batch, len(microbatch.ids), microbatch.filler)
        self.ids += () if microbatch.filler else microbatch.ids

    def metrics(self) -> dict[str, float]:
        """Those of rank 0, on all ranks: a metric that draws random numbers would differ, and with it what the ranks decide."""
        check_names(self.strategy, [*self.measuring.own], "evaluation_step")
        return self.strategy.all_gather_object(self.measuring.metrics(self.strategy.sum, self.gather))[0]

    def gather(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        mine = {"ids": np.array(self.ids, np.int64)} | {name: values.numpy() for name, values in rows.items()}
        return {name: torch.from_numpy(values) for name, values in merged(self.strategy.all_gather_object(mine), self.examples).items()}


# A GPU is fastest with large batches. On a CPU a token takes least time in batches of about a thousand, which fit into its caches, and one
# more batch of a small BERT takes the time of some 30 tokens: more padding than that costs more than it saves.
CPU_TOKENS, CPU_PADDING = 1024, 32  # for each thread of each data parallel rank


def batches_of(data: TrainingData, strategy: Strategy, batch_size: int, tokens: int | None) -> list[np.ndarray]:
    """At most so many examples and tokens, of all ranks together."""
    if strategy.device.type != "cpu":
        return in_order(data.lengths, batch_size, tokens)
    most, padding = (each * torch.get_num_threads() * strategy.data_parallel_size for each in (CPU_TOKENS, CPU_PADDING))
    return in_order(data.lengths, batch_size, min(tokens or most, most), padding)


def evaluate(
    state: TrainState, data: TrainingData, batch_size: int, tokens: int | None = None, may_continue: Callable[[], bool] = lambda: True,
    loader: Loader | None = None,
) -> dict[str, float] | None:  # fmt: skip
    """The metrics; None if `may_continue`, called after each batch with the same answer on all ranks, returned False."""
    measurements = Measurements(state, len(data))
    return measurements.metrics() if compute_outputs(state, data, batch_size, tokens, measurements.add, may_continue, loader) else None


@torch.no_grad()
def compute_outputs(
    state: TrainState, data: TrainingData, batch_size: int, tokens: int | None, use: UseOutputs, may_continue: Callable[[], bool] = lambda: True,
    loader: Loader | None = None,
) -> bool:  # fmt: skip
    """Call `use` with the outputs for this rank's share of each batch; False if `may_continue` stopped it before the last one."""
    strategy, task, modules, whole = state.strategy, state.task, state.plain_modules(), True
    for module in state.modules.values():
        module.eval()

    def compute(microbatch: MicroBatch, batch: Batch) -> None:
        batch = on_device(batch, strategy.device)
        try:
            with strategy.autocast():
                use(microbatch, batch, task.outputs(modules, batch))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise SystemExit(explain_evaluation(error, batch)) from None

    def batches() -> Iterator[Callable[[], None]]:
        nonlocal whole
        shares = (
            Request(ids, shard_batch(ids, 1, strategy.data_parallel_rank, strategy.data_parallel_size))
            for ids in batches_of(data, strategy, batch_size, tokens)
        )
        with closing((loader or Loader()).load(data, shares)) as batches:
            for _, loaded in batches:
                ((microbatch, batch),) = loaded.microbatches
                yield partial(compute, microbatch, batch)
                if not may_continue():
                    whole = False
                    return

    task.validation_epoch(modules, batches())
    return whole
