"""What a task says of its metrics, read from files without importing them: their names, and whether more or less of each is better."""

import ast
import functools
from pathlib import Path

from snaketrain.config.references import NotFound, find, module_file
from snaketrain.config.schema.module_task import ModuleSettings
from snaketrain.orchestration.code_digest import project_file
from snaketrain.orchestration.inspection.inheritance import class_attribute
from snaketrain.tasks.metric_modes import MODES, Modes, modes_of

UNTOLD = "untold"  # instead of a mode: only the training will know


@functools.cache
def of_task(file: Path, task: str, label_kind: str) -> Modes | None:
    """The `metrics = {...}` of a task's class or of its bases; None where that is computed."""
    value = class_attribute(file, task, "metrics")[1]
    try:
        written = ast.literal_eval(value) if value else None
    except (ValueError, TypeError):
        return None
    return None if written is None else modes_of(written, label_kind, task)


def of_module(settings: ModuleSettings) -> Modes:
    """Those of the task `module`, whose metrics are named in its arguments."""
    own = {name: mode_of_class(metric.use, str(metric.arguments.get("task", ""))) for name, metric in settings.metrics.items()}
    modes = settings.modes({name: None if mode == UNTOLD else mode for name, mode in own.items()})
    return modes | {name: UNTOLD for name, mode in own.items() if mode == UNTOLD and not modes[name]}


@functools.cache  # the points of a sweep have the same metrics
def mode_of_class(use: str, task: str = "") -> str | None:
    """By the `higher_is_better` of a class of torchmetrics or of one's own; a function has none."""
    try:
        file, name = find(use)
        file = file or module_file(use.rpartition(".")[0], use)
    except NotFound:  # is told elsewhere
        file = None
    if file is None:
        return UNTOLD
    if any(isinstance(each, ast.FunctionDef) and each.name == name for each in ast.parse(file.read_text(encoding="utf-8")).body):
        return None
    attribute, value = class_attribute(file, name, "higher_is_better", "__new__", find=project_or_torchmetrics)
    if attribute == "__new__" and task:  # `Accuracy` of the task multiclass makes a MulticlassAccuracy
        return mode_of_class(f"torchmetrics.classification.{task.capitalize()}{name}")
    return MODES.get(value.value, UNTOLD) if isinstance(value, ast.Constant) else UNTOLD


def project_or_torchmetrics(module: str, beside: Path) -> Path | None:
    if module.partition(".")[0] == "torchmetrics":
        return module_file(module, module)
    return project_file(module, beside)
