"""Looks at all code that a configuration names: whether it is there, and whether it can be called with the arguments that are given."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from snaketrain.config.references import NotFound, find, module_file
from snaketrain.config.schema import Settings, module_task
from snaketrain.config.schema.train import OF_THEIR_OWN
from snaketrain.data.sources.fetching import model_config, named_files
from snaketrain.orchestration.code_digest import code_strings
from snaketrain.orchestration.inspection.model_fields import fields_of, wrong_fields
from snaketrain.orchestration.inspection.signatures import Signature, signature_of, wrong_arguments
from snaketrain.orchestration.inspection.task_metrics import UNTOLD
from snaketrain.orchestration.inspection.task_metrics import of_module as metrics_of_module
from snaketrain.orchestration.inspection.task_metrics import of_task as metrics_of_task
from snaketrain.orchestration.pipeline import uses_in
from snaketrain.tasks.metric_modes import mode_of

OF_TEXTS = ("text_classification", "causal_lm")  # tasks whose models are of transformers
BY_THE_LABELS = dict.fromkeys(
    ("num_labels", "id2label", "label2id", "problem_type"), "the labels of the data (data.labels, data.label_kind)"
)


class Named(NamedTuple):
    """A setting that names code."""

    setting: str
    use: str
    place: str | None  # of short names
    arguments: dict[str, Any] | None  # None: those of something else
    called_with_more: bool = False  # by position, once there are values


def names(run: Settings) -> Iterator[str]:
    """Tasks, models, optimizers and schedules that do not exist, or not so; a metric that the task does not log."""
    task_file = of_module = None
    sound = True
    if run.train.task.use == "module":  # all that it is lies in its arguments
        wrong = module_task.problems(run.train.task.arguments)
        yield from wrong
        of_module = None if wrong else module_task.ModuleSettings(**run.train.task.arguments)
    for named in named_code(run, of_module):
        try:
            if named.place is None and "." not in named.use and ":" not in named.use:
                raise NotFound(f"`{named.use}` is not complete: write `package.module.Class` or `path/to/file.py:Class`")
            file, attribute = find(named.use, named.place)
            if file is None and is_module(named.use):
                raise NotFound(f"`{named.use}` is a module. Name a class or function in it")
        except NotFound as error:
            yield f"{named.setting}: {error}" + ("" if str(error).endswith("?") else ".")
            sound = False
            continue
        if file and (problem := unreadable(file)):
            yield f"{named.setting}: `{named.use}` imports {problem}"
            sound = False
            continue
        yield from called(named, run)
        if named.place == "tasks" and file:
            task_file = (file, attribute)
    if sound or of_module is None:
        yield from wrong_metric(run, of_module, task_file)


def wrong_metric(run: Settings, of_module: module_task.ModuleSettings | None, task_file: tuple[Path, str] | None) -> Iterator[str]:
    """A `select.metric` that the task does not log, or a `select.mode` that it contradicts."""
    try:
        metrics = metrics_of_module(of_module) if of_module else metrics_of_task(*task_file, run.data.label_kind) if task_file else None
        if metrics and metrics.get(run.select.metric) != UNTOLD:
            where = "" if run.data.label_kind == "class" else f" where data.label_kind is {run.data.label_kind}"
            mode_of(run.select.metric, metrics, run.select.mode, where)
    except SystemExit as error:
        yield str(error)


def named_code(run: Settings, of_module: module_task.ModuleSettings | None) -> Iterator[Named]:
    train = run.train
    yield Named("train.task.use", train.task.use, "tasks", None if train.task.use == "module" else train.task.arguments)
    yield Named("model.use", run.model.use, None, run.model.arguments)
    yield Named("train.optimizer.use", train.optimizer.use, None, train.optimizer.arguments)
    yield Named("train.schedule.use", train.schedule.use, "training.schedules", train.schedule.arguments)
    if train.strategy.use != "auto":
        yield Named("train.strategy.use", train.strategy.use, "strategies", train.strategy.arguments)
    for split in ("train", "dev", "test"):
        source = getattr(run.data, split)
        if source is not None and source.use is not None:
            yield Named(f"data.{split}.use", source.use, None, source.arguments)
    if of_module is None:
        yield from (Named("train.task.arguments", use, None, None) for use in uses_in(train.task.arguments))
        return
    parts = {f"losses.{name}": loss for name, loss in of_module.losses.items()}
    parts |= {f"regularisers.{number}": each for number, each in enumerate(of_module.regularisers)}
    parts |= {f"metrics.{name}": metric for name, metric in of_module.metrics.items()}
    yield from (Named(f"train.task.arguments.{place}.use", each.use, None, each.arguments, True) for place, each in parts.items())


def called(named: Named, run: Settings) -> Iterator[str]:
    """What is wrong with the arguments."""
    setting = named.setting.removesuffix("use") + "arguments"
    if named.arguments is None:
        return
    if named.setting == "model.use":
        yield from model_arguments(setting, run)
        return
    if named.setting == "train.optimizer.use":
        yield from (
            f"{setting}.{name}: is told by {OF_THEIR_OWN[name]}. Set that instead." for name in named.arguments if name in OF_THEIR_OWN
        )
    signature = signature_of_use(named.use, named.place)
    if signature is None:
        return
    if named.setting == "train.optimizer.use":
        if "lr" not in signature.takes:
            yield f"{named.setting}: `{named.use}` takes no `lr`, as optimizers do. Name an optimizer's class such as torch.optim.AdamW."
            return
        signature = less(signature, (*signature.positional[:1], *OF_THEIR_OWN))
        yield from wrong_arguments(setting, {name: value for name, value in named.arguments.items() if name not in OF_THEIR_OWN}, signature)
        return
    if named.place == "training.schedules" and is_function(named.use):
        signature = less(signature, signature.positional[:2])
    if named.place == "strategies":
        signature = less(signature, ("device", "precision"))
    yield from wrong_arguments(setting, named.arguments, signature, needed=not named.called_with_more)


def model_arguments(setting: str, run: Settings) -> Iterator[str]:
    """Of a model of transformers they are fields of its configuration; a task of one's own may take them for anything."""
    task, model = run.train.task.use, run.model
    if task not in (*OF_TEXTS, "module") or (model.source and model.source.hub):
        return  # what lies on a hub is looked at once it is here
    if task in OF_TEXTS and model.use.startswith("torch."):
        yield f"model.use: {task} needs a model of transformers, and {model.use} is none. Name one such as transformers.BertForSequenceClassification."
        return
    if task == "text_classification" and model.use.startswith("transformers.") and "ForSequenceClassification" not in model.use:
        yield f"model.use: {task} needs a model for sequence classification, and {model.use} is none. Name one such as transformers.BertForSequenceClassification."
        return
    try:
        config = model_config(named_files(model.source)) if model.source else None
        weights = config and config.parent
    except ValueError:  # told where the files are looked at
        weights = None
    if weights is None and ".Auto" in model.use:
        return
    fields = fields_of(model.use, weights)
    if fields is not None:
        told = BY_THE_LABELS if task == "text_classification" else {}
        yield from wrong_fields(setting, model.arguments, {name: each for name, each in fields.items() if name not in told}, told)
    elif task == "module" and model.source is None and (signature := signature_of_use(model.use, None)):
        yield from wrong_arguments(setting, model.arguments, signature)


def signature_of_use(use: str, place: str | None) -> Signature | None:
    file, attribute = find(use, place)
    try:
        file = file or module_file(use.rpartition(".")[0], use)
    except NotFound:
        return None
    return signature_of(file.resolve(), attribute) if file else None


@functools.cache
def is_module(use: str) -> bool:
    try:
        return module_file(use, use) is not None
    except NotFound:
        return False


def is_function(use: str) -> bool:
    return use.rpartition(":")[2].rpartition(".")[2].islower()


def less(signature: Signature, names: tuple[str, ...] | list[str]) -> Signature:
    """Without those that the trainer gives."""
    takes = {name: annotation for name, annotation in signature.takes.items() if name not in names}
    return Signature(takes, [name for name in signature.needs if name not in names], signature.positional)


@functools.cache
def unreadable(file: Path) -> str | None:
    """What is wrong with a module that a user's own file imports; its digest is taken before any job."""
    try:
        code_strings(file)
    except SyntaxError as error:
        return f"{error.filename}, line {error.lineno}: {error.msg}. Correct the file."
    except (OSError, ValueError, RecursionError) as error:
        return f"what cannot be read as Python: {error}. Correct the file."
    return None
