"""Metrics and predictions of a task on a split: every example exactly once, gathered from all ranks."""

from collections.abc import Callable

import numpy as np
import torch
from tqdm import tqdm

from snaketrain.data.loading.training_data import TrainingData
from snaketrain.training.evaluation import Sums, all_outputs
from snaketrain.training.learner import Learner

Rows = dict[str, np.ndarray]


@torch.no_grad()
def predict(
    learner: Learner,
    examples: TrainingData,
    batch_size: int,
    tokens: int | None,
    name: str,
    measured: bool,
    beat: Callable[[], None] = lambda: None,
) -> tuple[dict[str, float], Rows]:
    """The metrics, if `measured`, and on the first rank the rows with their `ids`, in the order of the examples."""
    strategy, sums = learner.strategy, Sums(learner)
    mine: dict[str, list[np.ndarray]] = {"ids": [np.empty(0, np.int64)]}
    bar = tqdm(total=len(examples), desc=name, unit="example", disable=strategy.rank > 0, mininterval=5)
    for piece, batch, outputs in all_outputs(learner, examples, batch_size, tokens):
        if measured:
            sums.add(piece, batch, outputs)
        predicted = learner.task.predict(outputs, batch)  # on all ranks, since a model may be sharded over them
        del outputs  # large, and would stay in memory until the next are computed
        if not piece.filler:
            mine["ids"].append(np.array(piece.ids, np.int64))
            for column, rows in predicted.items():
                mine.setdefault(column, []).append(on_cpu(rows))
            bar.update(len(piece.ids) * strategy.data_parallel_size)
        beat()
    bar.close()
    of_all_ranks = strategy.all_gather_object({column: np.concatenate(rows) for column, rows in mine.items()})
    return sums.metrics() if measured else {}, merged(of_all_ranks, len(examples)) if strategy.rank == 0 else {}


def on_cpu(rows: torch.Tensor) -> np.ndarray:
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
