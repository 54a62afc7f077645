"""Errors in optimizers and schedules: what they cannot be, and arguments that other settings determine."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from snaketrain.config.references import NotFound, find, module_file
from snaketrain.config.schema.train import ARGUMENTS_WITH_SETTINGS, NEEDS_CLOSURE, PLATEAU, SET_BY_LENGTH, TORCH_SCHEDULERS
from snaketrain.orchestration.inspection.definitions import class_and_bases, definition_of
from snaketrain.orchestration.inspection.signatures import Signature, argument_errors

SCHEDULER_ARGUMENTS_WITH_SETTINGS = {  # of torch's schedulers
    "max_lr": "is set by train.learning_rate. Set that instead.",
    "epochs": "is set by the length of the training. Leave it out.",
    "steps_per_epoch": "is set by the length of the training. Leave it out.",
    "total_steps": "is set by the length of the training. Leave it out.",
    "last_epoch": "is set where a training resumes. Leave it out.",
    "optimizer": "is passed by the trainer. Leave it out.",
}
OF_SCHEDULERS = ("SequentialLR", "ChainedScheduler")
OF_FUNCTIONS = ("LambdaLR", "MultiplicativeLR")
WITH_MOMENTUM = ("OneCycleLR", "CyclicLR")


def optimizer_errors(where: str, use: str, arguments: Mapping[str, object], signature: Signature | None) -> Iterator[str]:
    """The trainer passes the parameters; learning rates and weight decay are settings of their own."""
    setting = where.removesuffix("use") + "arguments"
    yield from (
        f"{setting}.{name}: is set by {ARGUMENTS_WITH_SETTINGS[name]}. Set that instead."
        for name in arguments
        if name in ARGUMENTS_WITH_SETTINGS
    )
    if needs_closure(use):
        yield f"{where}: {use} {NEEDS_CLOSURE}"
        return
    if signature is None:
        return
    if "lr" not in signature.parameters:
        yield f"{where}: `{use}` takes no `lr`, as optimizers do. Name an optimizer's class such as torch.optim.AdamW."
        return
    others = {name: value for name, value in arguments.items() if name not in ARGUMENTS_WITH_SETTINGS}
    yield from argument_errors(setting, others, signature.without((*signature.positional[:1], *ARGUMENTS_WITH_SETTINGS)))


def needs_closure(use: str) -> bool:
    """Whether `step` must be given a function that computes the loss, as of LBFGS."""
    try:
        file, name = find(use)
        file = file or module_file(use.rpartition(".")[0], use)
    except NotFound:
        return False
    for each in class_and_bases(definition_of(Path(file).resolve(), name)) if file else ():
        if each is None:
            return False
        for statement in each.node.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == "step":
                return len(statement.args.args) - len(statement.args.defaults) > 1  # besides `self`
    return False


def schedule_errors(where: str, use: str, arguments: Mapping[str, object], signature: Signature) -> Iterator[str]:
    setting, name = where.removesuffix("use") + "arguments", use.rpartition(".")[2]
    if is_function(use):
        yield from argument_errors(setting, arguments, signature.without(signature.positional[:2]))
        return
    if signature.positional[:1] != ["optimizer"]:
        yield from argument_errors(setting, arguments, signature)
        return
    if use.startswith(TORCH_SCHEDULERS) and (reason := unsupported(name, arguments, where)):
        yield reason
        return
    given = SCHEDULER_ARGUMENTS_WITH_SETTINGS | ({"mode": "follows from select.metric. Leave it out."} if use == PLATEAU else {})
    yield from (f"{setting}.{each}: {given[each]}" for each in arguments if each in given)
    others = {each: value for each, value in arguments.items() if each not in given}
    takes = signature.without((*given, *(each for each in SET_BY_LENGTH if each not in arguments)))
    yield from argument_errors(setting, others, takes)


def unsupported(name: str, arguments: Mapping[str, object], where: str) -> str | None:
    """Why a scheduler of torch cannot be used, or not like this."""
    if name in OF_SCHEDULERS:
        return f"{where}: {name} takes other schedulers. Write a function of the steps done and of all steps: path/to/file.py:my_schedule."
    if name in OF_FUNCTIONS:
        return (
            f"{where}: {name} takes a function. Name the function itself, of the steps done and of all steps: path/to/file.py:my_schedule."
        )
    if name in WITH_MOMENTUM and arguments.get("cycle_momentum", True):
        setting = where.removesuffix("use") + "arguments"
        return f"{setting}.cycle_momentum: a schedule changes the learning rate alone, not the momentum. Set it to false."
    if name == "ReduceLROnPlateau" and ".groups." in where:
        return f"{where}: ReduceLROnPlateau lowers the rates of all groups. Name it as train.schedule."
    return None


def is_function(use: str) -> bool:
    return use.rpartition(":")[2].rpartition(".")[2].islower()
