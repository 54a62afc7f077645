"""Errors in what a run measures and minimises: metrics that do not exist or are not logged, and weights of the loss."""

from collections.abc import Iterator

from snaketrain.config.errors import nearest
from snaketrain.config.schema import Metric, Settings
from snaketrain.config.schema.tasks import TextClassificationSettings, problems
from snaketrain.labels import label_kind
from snaketrain.orchestration.inspection.task_metrics import UNKNOWN, known_here, logged_metrics, own_metrics, train_settings
from snaketrain.tasks.metric_names import is_short, mode_of, short_names


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
