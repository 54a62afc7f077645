"""The metrics that a task declares, read from files without importing them: their names, and whether higher or lower is better."""

import ast
import functools
from pathlib import Path

from snaketrain.config.references import NotFound, find, module_file
from snaketrain.config.schema.module_task import ModuleSettings
from snaketrain.labels import metrics_by_label_kind
from snaketrain.orchestration.inspection.definitions import class_attribute
from snaketrain.tasks.metric_modes import MODES, Modes, modes_of

UNKNOWN = "unknown"  # instead of a mode: known only once the training runs


@functools.cache
def metrics_of_task(file: Path, task: str, label_kind: str) -> Modes | None:
    """The `metrics = {...}` of a task's class or its bases; None where that is computed."""
    value = class_attribute(file, task, "metrics")[1]
    if isinstance(value, ast.Call) and ast.unparse(value.func) == metrics_by_label_kind.__name__:
        return modes_of(metrics_by_label_kind(), label_kind, task)
    try:
        declared = ast.literal_eval(value) if value else None
    except (ValueError, TypeError):
        return None
    return None if declared is None else modes_of(declared, label_kind, task)


def metrics_of_module(settings: ModuleSettings) -> Modes:
    """Those of the task `module`, whose arguments name them."""
    own = {name: mode_of_class(metric.use, str(metric.arguments.get("task", ""))) for name, metric in settings.metrics.items()}
    modes = settings.modes({name: None if mode == UNKNOWN else mode for name, mode in own.items()})
    return modes | {name: UNKNOWN for name, mode in own.items() if mode == UNKNOWN and not modes[name]}


@functools.cache  # the runs of a sweep have the same metrics
def mode_of_class(use: str, task: str = "") -> str | None:
    """By `higher_is_better` of a class of torchmetrics or of the user; a function has none."""
    try:
        file, name = find(use)
        file = file or module_file(use.rpartition(".")[0], use)
    except NotFound:  # reported with the other references
        file = None
    if file is None:
        return UNKNOWN
    if any(isinstance(each, ast.FunctionDef) and each.name == name for each in ast.parse(file.read_text(encoding="utf-8")).body):
        return None
    attribute, value = class_attribute(file, name, "higher_is_better", "__new__", libraries=("torchmetrics",))
    if attribute == "__new__" and task:  # `Accuracy` with task="multiclass" makes a MulticlassAccuracy
        return mode_of_class(f"torchmetrics.classification.{task.capitalize()}{name}")
    if isinstance(value, ast.Constant) and (value.value is None or isinstance(value.value, bool)):
        return MODES[value.value]
    return UNKNOWN
