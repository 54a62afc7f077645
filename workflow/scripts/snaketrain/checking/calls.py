"""Whether what a run names takes the arguments that it is given: by its own signature, once it is imported."""

import contextlib
import dataclasses
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from snaketrain.checking import Findings
from snaketrain.checking.planned import SET_BY_DATA, NotPlannable, fetched_or_local
from snaketrain.config.errors import expectation, nearest
from snaketrain.config.references import load
from snaketrain.config.schema import ARGUMENTS_WITH_SETTINGS, Settings
from snaketrain.config.schema.train import PLATEAU
from snaketrain.models.pretrained import fields_of, read_config
from snaketrain.orchestration.named_code import TEXT_TASKS, known_here, named_metrics
from snaketrain.orchestration.own_files import Reference, references
from snaketrain.tasks.metric_names import is_short
from snaketrain.training.trainer import Trainer

PASSING_ON = ("snaketrain.", "torchmetrics.")  # whose classes pass further arguments on to their bases
OWN = "snaketrain.own."  # modules of files of the user
OF_TORCHMETRICS = "torchmetrics.metric"  # where the base class of all metrics is

# arguments that the stage itself passes
OF_STRATEGIES = ("device", "precision")
WITH_MOMENTUM = ("OneCycleLR", "CyclicLR")
OF_SCHEDULES = {  # of torch's schedulers, with what sets them
    "max_lr": "is set by train.learning_rate. Set that instead.",
    "total_steps": "is set by the length of the training. Leave it out.",
    "epochs": "is set by the length of the training. Leave it out.",
    "steps_per_epoch": "is set by the length of the training. Leave it out.",
    "last_epoch": "is set where a training resumes. Leave it out.",
    "optimizer": "is passed by the trainer. Leave it out.",
}
OF_TRAINERS = ("state", "data", "train", "plan", "folder", "journals", "options", "settings")

Parameters = dict[str, inspect.Parameter]


def check_calls(run: Settings, findings: Findings, results: Path) -> None:
    """All code that a run names is imported; nothing is called."""
    for reference in references(run):
        find = partial(load, reference.use, reference.short_names_in)
        found = findings.attempt(reference.setting, reference.use, find, "Correct its file, or what that needs")
        if inspect.ismodule(found):
            findings.report(f"{reference.setting}: `{reference.use}` is a module. Name a class or function in it.")
        if not callable(found):
            continue
        findings.report(*(_model_problems(run, found, results) if reference.setting == "model.use" else call_problems(reference, found)))
    findings.report(*short_metric_problems(run))


def _model_problems(run: Settings, found: Callable[..., Any], results: Path) -> Iterator[str]:
    """A task of the user's may use the arguments of a model for anything."""
    if run.train.task.use not in (*TEXT_TASKS, "module"):
        return
    if problem := other_kind(run):
        yield problem
        return
    if run.model.source or hasattr(found, "config_class"):
        if (config := configuration(run, found, results)) is not None:
            yield from field_problems(run, config)
    else:
        yield from argument_problems("model.arguments", run.model.arguments, found)


def other_kind(run: Settings) -> str | None:
    """Why a model is not of the kind that the task trains."""
    task, use = run.train.task.use, run.model.use
    if task in TEXT_TASKS and use.startswith("torch."):
        needed = "a transformers model"
    elif task == "text_classification" and use.startswith("transformers.") and "ForSequenceClassification" not in use:
        needed = "a model for sequence classification"
    else:
        return None
    return f"model.use: {task} needs {needed}, and {use} is not one. Name one such as transformers.BertForSequenceClassification."


def call_problems(reference: Reference, found: Callable[..., Any]) -> Iterator[str]:
    where, given = reference.setting.removesuffix("use") + "arguments", reference.arguments
    if given is None:  # the schema has them
        return
    if reference.setting.endswith("optimizer.use"):
        yield from optimizer_problems(where, given, found)
    elif reference.short_names_in == "training.schedules":
        if getattr(found, "__name__", "") in WITH_MOMENTUM and given.get("cycle_momentum", True):
            yield f"{where}.cycle_momentum: a schedule changes the learning rate alone, not the momentum. Set it to false."
            return
        if reference.use == PLATEAU and ".groups." in reference.setting:
            yield f"{reference.setting}: ReduceLROnPlateau lowers the rates of all groups. Name it as train.schedule."
        is_class = isinstance(found, type)
        set_elsewhere = OF_SCHEDULES | ({"mode": "follows from select.metric. Leave it out."} if reference.use == PLATEAU else {})
        yield from (f"{where}.{name}: {set_elsewhere[name]}" for name in given if is_class and name in set_elsewhere)
        others = {name: value for name, value in given.items() if not (is_class and name in set_elsewhere)}
        passed = (*set_elsewhere, *(["T_max"] if "T_max" not in given else []))
        yield from argument_problems(where, others, found, passed=passed, positional=0 if is_class else 2)
    elif reference.short_names_in == "strategies":
        yield from argument_problems(where, given, found, passed=OF_STRATEGIES)
        yield from passed_problems(reference, found, "`device` and `precision`", "**options", **dict.fromkeys(OF_STRATEGIES))
    elif reference.setting == "train.trainer.use":
        if isinstance(found, type) and issubclass(found, Trainer):  # what is none is reported as such
            yield from argument_problems(where, given, found, passed=OF_TRAINERS)
            yield from passed_problems(reference, found, "what every trainer is made of", "*arguments, **options", *OF_TRAINERS)
    else:
        yield from argument_problems(where, given, found, complete=reference.complete)


def passed_problems(
    reference: Reference, found: Callable[..., Any], what: str, how: str, *by_position: object, **by_name: object
) -> Iterator[str]:
    """Whether it takes what the stage itself passes, which a user who writes an `__init__` may forget."""
    try:
        inspect.signature(found).bind_partial(*by_position, **by_name)
    except TypeError:
        yield (
            f"{reference.setting}: the `__init__` of `{reference.use}` does not take {what}. Let it take `{how}` as well, and begin with "
            f"`super().__init__({how})`."
        )
    except ValueError:  # it has no signature
        return


def hook_problems(where: str, use: str, found: type, base: type) -> Iterator[str]:
    """Methods `on_...` that are never called, or not with as many arguments as they take: both would show in the training alone, or never."""
    hooks = {name: each for name, each in vars(base).items() if name.startswith("on_")}
    for name in dir(found):
        if name.startswith("on_") and name not in hooks and callable(getattr(found, name)):
            yield f"{where}: `{use}` has a method `{name}`, which is never called{nearest(name, hooks)} Hooks: {', '.join(hooks)}."
    for name, hook in hooks.items():
        takes = [*inspect.signature(hook).parameters]
        try:
            inspect.signature(getattr(found, name)).bind(*takes)
        except TypeError:
            yield f"{where}: `{name}` of `{use}` is called with other arguments. Define it as `def {name}({', '.join(takes)})`."


def optimizer_problems(where: str, given: Mapping[str, object], found: Callable[..., Any]) -> Iterator[str]:
    """The trainer passes the parameters; learning rates and weight decay are settings of their own."""
    for name in given.keys() & ARGUMENTS_WITH_SETTINGS.keys():
        yield f"{where}.{name}: is set by {ARGUMENTS_WITH_SETTINGS[name]}. Set that instead."
    others = {name: value for name, value in given.items() if name not in ARGUMENTS_WITH_SETTINGS}
    yield from argument_problems(where, others, found, passed=ARGUMENTS_WITH_SETTINGS, positional=1)


def short_metric_problems(run: Settings) -> Iterator[str]:
    """Arguments of metrics with short names, which may stand for one class where there are two labels, and for another elsewhere."""
    for where, metric in named_metrics(run):
        known = known_here(run).get(metric.use) if is_short(metric.use) else None
        uses = [use for use in (known.use, known.of_two_classes) if use] if known else []
        wrong = [list(argument_problems(f"{where}.arguments", metric.arguments, load(use), complete=False)) for use in uses]
        yield from min(wrong, key=len, default=[])


# --- by a signature


def argument_problems(
    where: str,
    given: Mapping[str, object],
    found: Callable[..., Any],
    passed: Iterable[str] = (),
    positional: int = 0,
    complete: bool = True,
) -> Iterator[str]:
    """Unknown arguments, those of the wrong type, and missing ones if the call must be `complete`.

    `passed` are those that the pipeline itself gives by name, and `positional` says how many it gives besides.
    """
    parameters = parameters_of(found)
    if parameters is None:
        return
    takes = {name: each for name, each in list(parameters.items())[positional:] if name not in passed}
    known = f"It takes: {', '.join(takes)}." if takes else "It takes none."
    for name, value in given.items():
        if name not in takes:
            yield f"{where}.{name}: no such argument{nearest(name, takes)} {known}"
        elif expected := mismatch(takes[name].annotation, value):
            yield f"{where}.{name}: {expected}."
    for name, each in takes.items() if complete else ():
        if each.default is each.empty and name not in given:
            yield f"{where}.{name}: is missing. Give it a value."


def parameters_of(found: Callable[..., Any]) -> Parameters | None:
    """Those that can be given by keyword; None where it may take any. What a class of ours passes on to its bases counts as well."""
    parameters: Parameters = {}
    places = [vars(each)["__init__"] for each in found.__mro__ if "__init__" in vars(each)] if isinstance(found, type) else [found]
    if isinstance(found, type) and (
        type(found).__call__ is not type.__call__ or any("__new__" in vars(each) for each in found.__mro__[:-1])
    ):
        return None  # another class may be made than this one
    for place in places:
        if getattr(place, "__module__", "") == OF_TORCHMETRICS:  # its own arguments are about its synchronisation, which is switched off
            return parameters
        try:
            own = dict(inspect.signature(place, eval_str=True).parameters)
        except (TypeError, ValueError, NameError, SyntaxError, AttributeError):
            return None
        if place is vars(object)["__init__"]:
            return parameters
        bound = list(own.items())[isinstance(found, type) :]
        parameters = {name: each for name, each in bound if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)} | parameters
        if not any(each.kind is each.VAR_KEYWORD for each in own.values()):
            return parameters
        if not place.__module__.startswith(PASSING_ON) or place.__module__.startswith(
            OWN
        ):  # what others do with further arguments, making it tells
            return None
    return None


def mismatch(annotation: Any, value: object) -> str | None:
    """What is expected instead of a value of the configuration; None where it fits, or where only its own code can tell."""
    if annotation in (inspect.Parameter.empty, Any):
        return None
    try:
        TypeAdapter(annotation).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        if all(item["type"] in ("is_instance_of", "callable_type") for item in error.errors()):
            return None
        return expectation(error.errors()[0])
    except (PydanticUserError, TypeError, ValueError):
        return None
    return None


# --- by a model's configuration


def configuration(run: Settings, cls: Any, results: Path) -> Any:
    """That of the weights; where these are not here, the defaults of the class, which an Auto class lacks."""
    if run.model.source:
        with contextlib.suppress(NotPlannable, OSError, ValueError):
            return read_config(cls, fetched_or_local(run.model.source, results, "model.source"))
    return cls.config_class() if getattr(cls, "config_class", None) else None


def field_problems(run: Settings, config: Any) -> Iterator[str]:
    """Arguments that are no fields of the configuration, which would keep them without effect, or that another setting decides."""
    where = "model.arguments"
    types = {field.name: field.type for field in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else {}
    types |= {alias: types.get(name, Any) for alias, name in config.attribute_map.items()}
    fields = fields_of(config)
    for name, value in run.model.arguments.items():
        if run.train.task.use == "text_classification" and name in SET_BY_DATA:
            yield f"{where}.{name}: is set by the labels of the data (data.labels, data.label_kind). Remove it."
        elif name not in fields:
            yield f"{where}.{name}: the model's configuration has no such field{nearest(name, fields)} See the model's documentation for all fields."
        elif expected := mismatch(types.get(name, Any), value):
            yield f"{where}.{name}: {expected}."
