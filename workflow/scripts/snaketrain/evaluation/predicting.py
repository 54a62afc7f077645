"""Metrics and predictions of a trained model on a split: every example exactly once, gathered from all ranks; and those of constant answers."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from snaketrain.config.schema import Model, Train
from snaketrain.data.loading.batches import MicroBatch
from snaketrain.data.loading.loader import Loader
from snaketrain.data.loading.training_data import Batch, TrainingData
from snaketrain.evaluation.results import Rows, Table, report_for
from snaketrain.models.weights import leave_trained_unread
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.strategies.base import Strategy
from snaketrain.tasks.base import Outputs, Task
from snaketrain.tasks.metrics import Measuring
from snaketrain.tasks.text_classification import TextClassification
from snaketrain.training.building import build, by_slices, load_for_evaluation
from snaketrain.training.evaluation import Measurements, as_array, compute_outputs, merged
from snaketrain.training.state import TrainState

ROWS_AT_ONCE, LOGITS_AT_ONCE = 10_000, 10_000_000


def load_trained(
    task: Task, train: Train, model: Model, pretrained: Path | None, facts: JsonObject, folder: Path, strategy: Strategy
) -> TrainState:
    """A model with the weights in `folder`, ready to predict; `pretrained`: the folder that its training built it from."""
    slices = by_slices(task, strategy)
    modules = build(task, train, model, pretrained, facts, builds=strategy.builds and not slices, slices=slices)
    if slices:
        for name, module in modules.items():
            leave_trained_unread(module, folder, name)
    state = load_for_evaluation(task, modules, strategy, folder)
    task.load_state_dict(torch.load(folder / "task.memory.pt", weights_only=True))  # such as averaged weights
    return state


def predict(
    state: TrainState,
    examples: TrainingData,
    batch_size: int,
    tokens: int | None,
    name: str,
    measured: bool,
    beat: Callable[[], None] = lambda: None,
    loader: Loader | None = None,
) -> tuple[dict[str, float], Rows]:
    """The metrics, if `measured`, and on rank 0 the rows with their `ids`, in the order of the examples."""
    strategy, measurements = state.strategy, Measurements(state, len(examples))
    columns: dict[str, list[np.ndarray]] = {"ids": [np.empty(0, np.int64)]}

    def keep(microbatch: MicroBatch, batch: Batch, outputs: Outputs) -> None:
        if measured:
            measurements.add(microbatch, batch, outputs)
        predicted = state.task.predict(outputs, batch)  # on all ranks, since a model may be sharded over them
        if not microbatch.filler:
            columns["ids"].append(np.array(microbatch.ids, np.int64))
            for column, rows in predicted.items():
                columns.setdefault(column, []).append(as_array(rows))
            bar.update(len(microbatch.ids) * strategy.data_parallel_size)
        beat()

    # closed before an error is reported, which would stand in the middle of the log else
    with tqdm(total=len(examples), desc=name, unit="example", disable=strategy.rank > 0, mininterval=5) as bar:
        compute_outputs(state, examples, batch_size, tokens, keep, loader=loader)
    of_ranks = strategy.all_gather_object({column: np.concatenate(rows) for column, rows in columns.items()})
    return measurements.metrics() if measured else {}, merged(of_ranks, len(examples)) if strategy.rank == 0 else {}


# --- Baselines: the metrics of constant answers, including those that the configuration adds to the task's.


def baselines(task: Task, rows: Rows, table: Table, facts: JsonObject) -> dict[str, JsonObject]:
    """By the name of the answer, without what is undefined, such as a correlation with a constant.

    If a metric fails on constant answers: a warning and none, and the model's results stand.
    """
    try:
        found = task.baselines({name: torch.from_numpy(values) for name, values in rows.items() if values.dtype.kind != "U"})
        report = report_for(rows, table, facts) if isinstance(task, TextClassification) else None
        if report:  # whose own baselines have further metrics
            labels = report.labels(table["label"])
            if len(labels := labels[report.known(labels)]):
                found |= {name: measured_constant(task, logits, labels) for name, logits in report.constants(labels).items()}
        return {
            name: {metric: value for metric, value in metrics.items() if not isinstance(value, float) or math.isfinite(value)}
            for name, metrics in found.items()
        }
    except Exception as error:  # in the code of a metric, which may be a user's
        print(f"warning: no baseline: a metric of the constant answers failed with {type(error).__name__}: {error}", flush=True)
        return {}


def measured_constant(task: Task, logits: np.ndarray, labels: np.ndarray) -> JsonObject:
    measuring = Measuring(task)
    at_once = max(1, min(ROWS_AT_ONCE, LOGITS_AT_ONCE // len(logits)))
    for start in range(0, len(labels), at_once):
        some = torch.from_numpy(labels[start : start + at_once])
        some = some.float() if some.is_floating_point() else some
        measuring.add(torch.from_numpy(logits).float().expand(len(some), -1), {"labels": some}, len(some))
    return measuring.metrics()
