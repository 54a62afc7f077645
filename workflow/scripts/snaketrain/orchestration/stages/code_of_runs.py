"""The files whose code decides what a run trains, evaluates or predicts: the user's own, and those of the library that settings name."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from snaketrain.config.schema import Settings
from snaketrain.labels import label_kind_file
from snaketrain.orchestration.inspection.strategy_declarations import strategy_files
from snaketrain.orchestration.own_files import class_files, dataset_classes, uses_in
from snaketrain.tasks.metric_names import is_short

Named: TypeAlias = Iterable[tuple[str, str | None]]  # what a setting `use` names, and the package whose names may be short


def code_of_run(run: Settings, also: Named = ()) -> list[Path]:
    """Task, model, data, losses and metrics."""
    named = [(run.train.task.use, "tasks"), (run.model.use, None), *dataset_classes(run.data.for_training), *also]
    named += [(use, None) for use in uses_in(run.train.task.arguments)]  # losses, metrics
    named += [(metric.use, None) for metric in run.train.metrics.values() if not is_short(metric.use)]
    return [*class_files(named), *strategy_files(run.train.strategy.use), label_kind_file(run.data.label_kind)]


def code_of_evaluation(run: Settings, evaluation_set: str) -> list[Path]:
    metrics = [(metric.use, None) for metric in run.evaluate.metrics.values() if not is_short(metric.use)]
    return code_of_run(run, [*dataset_classes(run.sets.get(evaluation_set, run.data)), *metrics])


def code_of_training(run: Settings) -> list[Path]:
    """Also optimizers, schedules and callbacks."""
    train = run.train
    named: list[tuple[str, str | None]] = [(train.optimizer.use, None), (train.schedule.use, "training.schedules")]
    named += [(group.optimizer.use, None) for group in train.groups if group.optimizer]
    named += [(group.schedule.use, "training.schedules") for group in train.groups if group.schedule]
    named += [(callback.use, None) for callback in train.callbacks]
    return code_of_run(run, named)
