"""Checks all code that a configuration refers to: whether it exists, and whether it can be called with the given arguments."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from snaketrain.config.errors import nearest
from snaketrain.config.references import NotFound, find, module_file
from snaketrain.config.schema import Settings, Use, module_task
from snaketrain.config.schema.module_task import problems
from snaketrain.config.schema.text_task import TextClassificationSettings
from snaketrain.config.schema.train import ARGUMENTS_WITH_SETTINGS
from snaketrain.data.sources.fetching import model_config, named_files
from snaketrain.labels import label_kind
from snaketrain.orchestration.code_digest import code_strings
from snaketrain.orchestration.inspection.model_fields import config_fields, field_errors
from snaketrain.orchestration.inspection.signatures import Signature, argument_errors, signature_of
from snaketrain.orchestration.inspection.task_metrics import UNKNOWN, known_here, logged_metrics, own_metrics, train_settings
from snaketrain.orchestration.own_files import uses_in
from snaketrain.tasks.metric_modes import mode_of
from snaketrain.tasks.metric_names import is_short, short_names

CHECKED_BY_CLASS = ("module", "text_classification")  # tasks whose arguments are declared in config/schema
TEXT_TASKS = ("text_classification", "causal_lm")  # their models are from transformers
SET_BY_LABELS = dict.fromkeys(
    ("num_labels", "id2label", "label2id", "problem_type"), "the labels of the data (data.labels, data.label_kind)"
)


class Reference(NamedTuple):
    """A setting that refers to code."""

    setting: str
    use: str
    short_names_in: str | None
    arguments: Mapping[str, object] | None  # None: they are not for the code itself
    complete: bool = True  # whether it is called with only these arguments; losses and metrics get tensors as well


def reference_errors(run: Settings) -> Iterator[str]:
    """Tasks, models, optimizers and the like that do not exist or do not take their arguments; a metric that the task does not log."""
    module_settings = None
    complete = True  # whether everything that determines the metrics could be read
    if run.train.task.use == "module":  # its arguments define it
        wrong = problems(run.train.task.arguments)
        yield from wrong
        module_settings = None if wrong else module_task.ModuleSettings(**run.train.task.arguments)
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
        yield from call_errors(reference, run)
    yield from named_metric_errors(run)
    if complete or module_settings is None:
        yield from metric_errors(run)


def loss_errors(run: Settings) -> Iterator[str]:
    """Class weights and the like of a text classification."""
    given = run.train.task.arguments
    yield from (found := problems(given, TextClassificationSettings))
    if not found and given and not label_kind(run.data.label_kind).has_classes:
        yield f"train.task.arguments: {', '.join(sorted(given))}: is for classes, but data.label_kind is {run.data.label_kind}. Remove it."


def definition_file(reference: Reference) -> tuple[Path | None, str]:
    """The file that defines what is referred to, None for a library's, and its name there."""
    use = reference.use
    if reference.short_names_in is None and "." not in use and ":" not in use:
        raise NotFound(f"`{use}` is not complete: write `package.module.Class` or `path/to/file.py:Class`")
    file, name = find(use, reference.short_names_in)
    if file is None and is_module(use):
        raise NotFound(f"`{use}` is a module. Name a class or function in it")
    return file, name


def metric_errors(run: Settings) -> Iterator[str]:
    """A `select.metric` that the training does not log, or a `select.mode` that it contradicts; two metrics of one name."""
    try:
        own = own_metrics(run) or {}
        for section, given in (("train", run.train.metrics), ("evaluate", run.evaluate.metrics)):
            for name in own.keys() & given.keys():
                yield f"{section}.metrics.{name}: the task logs a metric of this name by itself. Remove it, or give yours another name."
        metrics = logged_metrics(run.model_copy(update={"train": train_settings(run)}))
        if metrics and metrics.get(run.select.metric) != UNKNOWN:
            where = "" if run.data.label_kind == "class" else f" where data.label_kind is {run.data.label_kind}"
            mode_of(run.select.metric, metrics, run.select.mode, where)
    except SystemExit as error:
        yield str(error)


def named_metric_errors(run: Settings) -> Iterator[str]:
    """Short names in `train.metrics` and `evaluate.metrics` that do not exist, and their arguments."""
    for section, given in (("train.metrics", run.train.metrics), ("evaluate.metrics", run.evaluate.metrics)):
        for name, metric in given.items():
            where = f"{section}.{name}"
            if not is_short(metric.use):
                continue
            known = known_here(run).get(metric.use)
            if known is None:
                names = known_here(run)
                yield f"{where}.use: there is no metric `{metric.use}` here{nearest(metric.use, names)} {short_names(names)}"
                continue
            yield from (
                f"{where}.arguments.{argument}: is missing. Give it a value."
                for argument in known.required
                if argument not in metric.arguments
            )
            signatures = [found for use in (known.use, known.of_two_classes) if use and (found := signature_of_use(use, None))]
            wrong = [list(argument_errors(f"{where}.arguments", metric.arguments, each, complete=False)) for each in signatures]
            yield from min(wrong, key=len, default=[])


def references(run: Settings, module_settings: module_task.ModuleSettings | None) -> Iterator[Reference]:
    train = run.train
    yield Reference("train.task.use", train.task.use, "tasks", None if train.task.use in CHECKED_BY_CLASS else train.task.arguments)
    yield Reference("model.use", run.model.use, None, run.model.arguments)
    yield Reference("train.optimizer.use", train.optimizer.use, None, train.optimizer.arguments)
    yield Reference("train.schedule.use", train.schedule.use, "training.schedules", train.schedule.arguments)
    for number, callback in enumerate(train.callbacks):
        yield Reference(f"train.callbacks.{number}.use", callback.use, None, callback.arguments)
    if train.strategy.use != "auto":
        yield Reference("train.strategy.use", train.strategy.use, "strategies", train.strategy.arguments)
    for section, given in (("train", train.metrics), ("evaluate", run.evaluate.metrics)):
        for name, metric in given.items():
            if not is_short(metric.use):
                yield Reference(f"{section}.metrics.{name}.use", metric.use, None, metric.arguments, complete=False)
    for split in ("train", "dev", "test"):
        source = getattr(run.data, split)
        if source is not None and source.use is not None:
            yield Reference(f"data.{split}.use", source.use, None, source.arguments)
    if module_settings is None:
        yield from (Reference("train.task.arguments", use, None, None) for use in uses_in(train.task.arguments))
        return
    parts: dict[str, Use] = {f"losses.{name}": loss for name, loss in module_settings.losses.items()}
    parts |= {f"regularisers.{number}": each for number, each in enumerate(module_settings.regularisers)}
    parts |= {f"metrics.{name}": metric for name, metric in module_settings.metrics.items()}
    for place, each in parts.items():
        yield Reference(f"train.task.arguments.{place}.use", each.use, None, each.arguments, complete=False)


def call_errors(reference: Reference, run: Settings) -> Iterator[str]:
    """Errors in the arguments."""
    setting = reference.setting.removesuffix("use") + "arguments"
    if reference.arguments is None:
        return
    if reference.setting == "model.use":
        yield from model_argument_errors(setting, run)
        return
    signature = signature_of_use(reference.use, reference.short_names_in)
    if reference.setting == "train.optimizer.use":
        yield from optimizer_argument_errors(setting, reference, signature)
        return
    if signature is None:
        return
    if reference.short_names_in == "training.schedules" and is_function(reference.use):
        signature = signature.without(signature.positional[:2])
    if reference.short_names_in == "strategies":
        signature = signature.without(("device", "precision"))
    yield from argument_errors(setting, reference.arguments, signature, reference.complete)


def optimizer_argument_errors(setting: str, reference: Reference, signature: Signature | None) -> Iterator[str]:
    """The trainer passes the parameters; learning rates and weight decay are settings of their own."""
    arguments = reference.arguments or {}
    yield from (
        f"{setting}.{name}: is set by {ARGUMENTS_WITH_SETTINGS[name]}. Set that instead."
        for name in arguments
        if name in ARGUMENTS_WITH_SETTINGS
    )
    if signature is None:
        return
    if "lr" not in signature.parameters:
        yield f"{reference.setting}: `{reference.use}` takes no `lr`, as optimizers do. Name an optimizer's class such as torch.optim.AdamW."
        return
    others = {name: value for name, value in arguments.items() if name not in ARGUMENTS_WITH_SETTINGS}
    yield from argument_errors(setting, others, signature.without((*signature.positional[:1], *ARGUMENTS_WITH_SETTINGS)))


def model_argument_errors(setting: str, run: Settings) -> Iterator[str]:
    """For a transformers model, they are fields of its configuration; a custom task may use them for anything."""
    task, model = run.train.task.use, run.model
    if task not in (*TEXT_TASKS, "module") or (model.source and model.source.hub):
        return  # a hub's files are checked once they are here
    if task in TEXT_TASKS and model.use.startswith("torch."):
        yield f"model.use: {task} needs a transformers model, and {model.use} is not one. Name one such as transformers.BertForSequenceClassification."
        return
    if task == "text_classification" and model.use.startswith("transformers.") and "ForSequenceClassification" not in model.use:
        yield f"model.use: {task} needs a model for sequence classification, and {model.use} is not one. Name one such as transformers.BertForSequenceClassification."
        return
    try:
        config = model_config(named_files(model.source)) if model.source else None
    except ValueError:  # reported with the files
        config = None
    weights = config.parent if config else None
    if weights is None and ".Auto" in model.use:
        return
    fields = config_fields(model.use, weights)
    if fields is not None:
        set_by = SET_BY_LABELS if task == "text_classification" else {}
        yield from field_errors(setting, model.arguments, {name: each for name, each in fields.items() if name not in set_by}, set_by)
    elif task == "module" and model.source is None and (signature := signature_of_use(model.use, None)):
        yield from argument_errors(setting, model.arguments, signature)


def signature_of_use(use: str, short_names_in: str | None) -> Signature | None:
    file, name = find(use, short_names_in)
    try:
        file = file or module_file(use.rpartition(".")[0], use)
    except NotFound:
        return None
    return signature_of(file.resolve(), name) if file else None


@functools.cache
def is_module(use: str) -> bool:
    try:
        return module_file(use, use) is not None
    except NotFound:
        return False


def is_function(use: str) -> bool:
    return use.rpartition(":")[2].rpartition(".")[2].islower()


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
