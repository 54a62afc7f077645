"""Whether all code that a configuration names exists, by its files; `checking/calls.py` imports it, and binds its arguments."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from snaketrain.config.references import NotFound, find, module_file
from snaketrain.config.schema import Settings, Use, tasks
from snaketrain.config.schema.tasks import problems
from snaketrain.orchestration.code_digest import code_strings
from snaketrain.orchestration.inspection.measuring_errors import loss_errors, metric_errors, named_metric_errors, named_metrics
from snaketrain.orchestration.own_files import uses_in
from snaketrain.tasks.metric_names import is_short

CHECKED_BY_CLASS = ("module", "text_classification")  # tasks whose arguments are declared in config/schema
TEXT_TASKS = ("text_classification", "causal_lm", "seq2seq")  # their models are from transformers


class Reference(NamedTuple):
    """A setting that refers to code."""

    setting: str
    use: str
    short_names_in: str | None
    arguments: Mapping[str, object] | None  # None: they are not for the code itself
    complete: bool = True  # whether it is called with only these arguments; losses and metrics get tensors as well


def reference_errors(run: Settings) -> Iterator[str]:
    """Tasks, models, optimizers and the like that do not exist; a metric that the task does not log."""
    module_settings = None
    complete = True  # whether everything that determines the metrics could be read
    if run.train.task.use == "module":  # its arguments define it
        wrong = problems(run.train.task.arguments)
        yield from wrong
        module_settings = None if wrong else tasks.ModuleSettings(**run.train.task.arguments)
    if run.train.task.use == "text_classification":
        yield from loss_errors(run)
    for reference in references(run, module_settings):
        try:
            file, _ = definition_file(reference)
        except NotFound as error:
            yield f"{reference.setting}: {error}" + ("" if str(error).endswith("?") else ".")
            complete = False
            continue
        if file and (problem := unreadable(file)):
            yield f"{reference.setting}: `{reference.use}` imports {problem}"
            complete = False
            continue
        if reference.setting == "model.use":
            yield from model_kind_errors(run)
    yield from named_metric_errors(run)
    if complete or module_settings is None:
        yield from metric_errors(run)


def definition_file(reference: Reference) -> tuple[Path | None, str]:
    """The file that defines what is referred to, None for a library's, and its name there."""
    use = reference.use
    if reference.short_names_in is None and "." not in use and ":" not in use:
        raise NotFound(f"`{use}` is not complete: write `package.module.Class` or `path/to/file.py:Class`")
    file, name = find(use, reference.short_names_in)
    if file is None and is_module(use):
        raise NotFound(f"`{use}` is a module. Name a class or function in it")
    return file, name


def references(run: Settings, module_settings: tasks.ModuleSettings | None) -> Iterator[Reference]:
    train = run.train
    yield Reference("train.task.use", train.task.use, "tasks", None if train.task.use in CHECKED_BY_CLASS else train.task.arguments)
    yield Reference("model.use", run.model.use, None, run.model.arguments)
    yield Reference("train.optimizer.use", train.optimizer.use, None, train.optimizer.arguments)
    yield Reference("train.schedule.use", train.schedule.use, "training.schedules", train.schedule.arguments)
    for number, group in enumerate(train.groups):
        if group.optimizer:
            yield Reference(f"train.groups.{number}.optimizer.use", group.optimizer.use, None, group.optimizer.arguments)
        if group.schedule:
            yield Reference(f"train.groups.{number}.schedule.use", group.schedule.use, "training.schedules", group.schedule.arguments)
    for number, callback in enumerate(train.callbacks):
        yield Reference(f"train.callbacks.{number}.use", callback.use, None, callback.arguments)
    if train.trainer:
        yield Reference("train.trainer.use", train.trainer.use, None, train.trainer.arguments, complete=False)
    if train.strategy.use != "auto":
        yield Reference("train.strategy.use", train.strategy.use, "strategies", train.strategy.arguments)
    for name, metric in named_metrics(run):
        if not is_short(metric.use):
            yield Reference(f"{name}.use", metric.use, None, metric.arguments, complete=False)
    sources = {f"data.{split}": source for split, source in run.data.sources.items()}
    for place, source in (sources | {f"evaluation_sets.{name}": each for name, each in run.evaluation_sets.items()}).items():
        if source.use is not None:
            yield Reference(f"{place}.use", source.use, None, source.arguments)
    if module_settings is None:
        yield from (Reference("train.task.arguments", use, None, None) for use in uses_in(train.task.arguments))
        return
    parts: dict[str, Use] = {f"losses.{name}": loss for name, loss in module_settings.losses.items()}
    parts |= {f"regularisers.{number}": each for number, each in enumerate(module_settings.regularisers)}
    parts |= {f"metrics.{name}": metric for name, metric in module_settings.metrics.items()}
    for place, each in parts.items():
        yield Reference(f"train.task.arguments.{place}.use", each.use, None, each.arguments, complete=False)


def model_kind_errors(run: Settings) -> Iterator[str]:
    """A model that is not of the kind that the task trains."""
    task, model = run.train.task.use, run.model
    if task in TEXT_TASKS and model.use.startswith("torch."):
        yield f"model.use: {task} needs a transformers model, and {model.use} is not one. Name one such as transformers.BertForSequenceClassification."
    elif task == "text_classification" and model.use.startswith("transformers.") and "ForSequenceClassification" not in model.use:
        yield f"model.use: {task} needs a model for sequence classification, and {model.use} is not one. Name one such as transformers.BertForSequenceClassification."


@functools.cache
def is_module(use: str) -> bool:
    try:
        return module_file(use, use) is not None
    except NotFound:
        return False


@functools.cache
def unreadable(file: Path) -> str | None:
    """Why a module that a user's file imports cannot be read as Python; its digest is taken before any job."""
    try:
        code_strings(file)
    except SyntaxError as error:
        return f"{error.filename}, line {error.lineno}: {error.msg}. Correct the file."
    except (OSError, ValueError, RecursionError) as error:
        return f"what cannot be read as Python: {error}. Correct the file."
    return None
