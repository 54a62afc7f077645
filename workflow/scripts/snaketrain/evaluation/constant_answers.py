"""Baselines: the metrics of constant answers, including those that the configuration adds to the task's."""

import math

import numpy as np
import torch

from snaketrain.evaluation.results import Rows, Table, report_for
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.base import Task
from snaketrain.tasks.metrics import Measuring
from snaketrain.tasks.text_classification import TextClassification

ROWS_AT_ONCE, LOGITS_AT_ONCE = 10_000, 10_000_000


def baselines(task: Task, rows: Rows, table: Table, facts: JsonObject) -> dict[str, JsonObject]:
    """The metrics of each constant answer by its name. If a metric fails on constant answers: a warning and none, and the model's results stand."""
    try:
        found = task.baselines({name: torch.from_numpy(values) for name, values in rows.items() if values.dtype.kind != "U"})
        found |= of_labels(task, rows, table, facts) if isinstance(task, TextClassification) else {}
        return {name: defined(figures) for name, figures in found.items()}
    except Exception as error:  # in the code of a metric, which may be a user's
        print(f"warning: no baseline: a metric of the constant answers failed with {type(error).__name__}: {error}", flush=True)
        return {}


def of_labels(task: TextClassification, rows: Rows, table: Table, facts: JsonObject) -> dict[str, JsonObject]:
    """The metrics of the label kind's constant answers; its report adds others of its own."""
    report = report_for(rows, table, facts)
    if report is None:
        return {}
    labels = report.labels(table["label"])
    labels = labels[report.known(labels)]
    return {name: measured(task, logits, labels) for name, logits in report.constants(labels).items()} if len(labels) else {}


def measured(task: TextClassification, logits: np.ndarray, labels: np.ndarray) -> JsonObject:
    measuring = Measuring(task)
    at_once = max(1, min(ROWS_AT_ONCE, LOGITS_AT_ONCE // len(logits)))
    for start in range(0, len(labels), at_once):
        some = torch.from_numpy(labels[start : start + at_once])
        some = some.float() if some.is_floating_point() else some
        measuring.add(torch.from_numpy(logits).float().expand(len(some), -1), {"labels": some}, len(some))
    return measuring.metrics()


def defined(figures: JsonObject) -> JsonObject:
    """Without metrics that are undefined, such as a correlation with a constant."""
    return {name: value for name, value in figures.items() if not isinstance(value, float) or math.isfinite(value)}
