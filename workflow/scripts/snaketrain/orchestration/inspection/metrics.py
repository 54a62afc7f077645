"""The metrics of a run, read from files without importing them: their names, whether higher or lower is better, and errors in what is measured."""

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from snaketrain.config.errors import nearest
from snaketrain.config.references import NotFound, find, module_file
from snaketrain.config.schema import Metric, Settings, Train
from snaketrain.config.schema.tasks import ModuleSettings, TextClassificationSettings, problems
from snaketrain.labels import label_kind, metrics_by_label_kind
from snaketrain.orchestration.inspection.definitions import class_attribute
from snaketrain.tasks.metric_names import KNOWN, MODES, Known, Modes, is_short, mode_of, modes_of, short_names

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


def logged_metrics(run: Settings) -> Modes | None:
    """All metrics that a training logs on the development set; None where the task computes its own, or where a name is wrong."""
    own = own_metrics(run)
    return None if own is None else own | modes_of_settings(run.train.metrics, run)


def own_metrics(run: Settings) -> Modes | None:
    """Those that the task logs by itself."""
    task = run.train.task
    if task.use == "module":
        return None if problems(task.arguments) else metrics_of_module(ModuleSettings(**task.arguments))
    try:
        file, name = find(task.use, "tasks")
    except NotFound:  # reported with the other references
        return None
    return metrics_of_task(file, name, run.data.label_kind) if file else None


def modes_of_settings(given: Mapping[str, Metric], run: Settings) -> Modes:
    """The modes of metrics that a section names; those that do not exist are reported elsewhere."""
    return {name: mode_of_setting(metric, run) for name, metric in given.items()}


def mode_of_setting(metric: Metric, run: Settings) -> str | None:
    known = known_here(run).get(metric.use)
    own = known.mode if known else UNKNOWN if is_short(metric.use) else mode_of_class(metric.use, str(metric.arguments.get("task", "")))
    return metric.mode or own


def known_here(run: Settings) -> dict[str, Known]:
    """The short names of metrics for what a run predicts."""
    return KNOWN.get(label_kind(run.data.label_kind).head.problem_type, {}) if run.data.label is not None else {}


def train_settings(run: Settings) -> Train:
    """The section `train`, with the metric that selects the checkpoint if it is a short name that the training would not log otherwise."""
    metric = run.select.metric
    if metric not in known_here(run) or metric in run.train.metrics:
        return run.train
    own = own_metrics(run)
    if own is None or metric in own:
        return run.train
    return run.train.model_copy(update={"metrics": run.train.metrics | {metric: Metric(use=metric)}})


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


def metric_errors(run: Settings) -> Iterator[str]:
    """A `select.metric` that the training does not log, or a `select.mode` that it contradicts; two metrics of one name."""
    try:
        own = own_metrics(run) or {}
        for section, given in (("train", run.train.metrics), ("evaluate", run.evaluate.metrics)):
            for name in own.keys() & given.keys():
                yield f"{section}.metrics.{name}: the task logs a metric of this name by itself. Remove it, or give yours another name."
        train = train_settings(run)
        if run.select.metric in train.metrics.keys() - run.train.metrics.keys() and run.select.metric in run.evaluate.metrics:
            yield f"evaluate.metrics.{run.select.metric}: select.metric names it, so that it is logged and evaluated anyway. Remove it."
        metrics = logged_metrics(run.model_copy(update={"train": train}))
        if metrics and metrics.get(run.select.metric) != UNKNOWN:
            where = "" if run.data.label_kind == "class" else f" where data.label_kind is {run.data.label_kind}"
            mode_of(run.select.metric, metrics, run.select.mode, where)
    except SystemExit as error:
        yield str(error)


def named_metric_errors(run: Settings) -> Iterator[str]:
    """Short names in `train.metrics` and `evaluate.metrics` that do not exist, and arguments that they need."""
    names = known_here(run)
    for where, metric in named_metrics(run):
        if not is_short(metric.use):
            continue
        known = names.get(metric.use)
        if known is None:
            yield f"{where}.use: there is no metric `{metric.use}` here{nearest(metric.use, names)} {short_names(names)}"
            continue
        yield from (
            f"{where}.arguments.{argument}: is missing. Give it a value." for argument in known.required if argument not in metric.arguments
        )


def named_metrics(run: Settings) -> Iterator[tuple[str, Metric]]:
    """All metrics that the configuration names for any task, with their places."""
    for section, given in (("train.metrics", run.train.metrics), ("evaluate.metrics", run.evaluate.metrics)):
        yield from ((f"{section}.{name}", metric) for name, metric in given.items())


def loss_errors(run: Settings) -> Iterator[str]:
    """Class weights and the like of a text classification."""
    given = run.train.task.arguments
    yield from (found := problems(given, TextClassificationSettings))
    if not found and given and not label_kind(run.data.label_kind).has_classes:
        yield f"train.task.arguments: {', '.join(sorted(given))}: is for classes, but data.label_kind is {run.data.label_kind}. Remove it."
