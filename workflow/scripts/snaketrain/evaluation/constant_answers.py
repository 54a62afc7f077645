"""Baselines: what constant answers reach by the metrics of a task, those that the configuration names included."""

import math

import numpy as np
import torch

from snaketrain.evaluation.results import Rows, Table, report_for
from snaketrain.runtime.json_types import JsonObject
from snaketrain.tasks.base import Task
from snaketrain.tasks.measuring import Measuring
from snaketrain.tasks.text_classification import TextClassification

ROWS_AT_ONCE = 10_000


def baselines(task: Task, rows: Rows, table: Table, facts: JsonObject) -> dict[str, JsonObject]:
    """By name; none, with a warning, where a metric is undefined for constant answers: the model's own results stand."""
    try:
        found = task.baselines({name: torch.from_numpy(values) for name, values in rows.items() if values.dtype.kind != "U"})
        return found | (of_labels(task, rows, table, facts) if isinstance(task, TextClassification) else {})
    except Exception as error:  # of the code of a metric, which may be a user's
        print(f"warning: no baseline, since constant answers give {type(error).__name__}: {error}", flush=True)
        return {}


def of_labels(task: TextClassification, rows: Rows, table: Table, facts: JsonObject) -> dict[str, JsonObject]:
    """Of the constant answers of the label kind, which reports some metrics of them by itself."""
    report = report_for(rows, table, facts)
    if report is None:
        return {}
    labels = report.labels(table["label"])
    labels = labels[report.known(labels)]
    return {name: measured(task, logits, labels) for name, logits in report.constants(labels).items()} if len(labels) else {}


def measured(task: TextClassification, logits: np.ndarray, labels: np.ndarray) -> JsonObject:
    """Without metrics that are undefined, such as a correlation with a constant."""
    measuring = Measuring(task)
    for start in range(0, len(labels), ROWS_AT_ONCE):
        some = torch.from_numpy(labels[start : start + ROWS_AT_ONCE])
        some = some.float() if some.is_floating_point() else some
        measuring.add(torch.from_numpy(logits).float().expand(len(some), -1), {"labels": some}, len(some))
    return {name: value for name, value in measuring.metrics().items() if math.isfinite(value)}
