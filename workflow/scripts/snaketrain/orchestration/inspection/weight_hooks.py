"""Whether evaluations and checkpoints can change the weights of a training, read from files without importing them."""

import ast
import functools

from snaketrain.config.references import PACKAGE, NotFound, find
from snaketrain.config.schema import Train
from snaketrain.orchestration.inspection.definitions import Class, class_and_bases, class_attribute, definition_of

HOOKS = ("validation_epoch", "state_dict")  # of a task, as in training/building.py
TASK = PACKAGE / "tasks/base.py"


def evaluations_may_count(train: Train) -> bool:
    """Also where files do not tell."""
    return not all(observes_only(each.use) for each in train.callbacks) or overrides_hooks(train.task.use)


@functools.cache
def observes_only(callback: str) -> bool:
    try:
        file, name = find(callback)
    except NotFound:
        return False
    value = class_attribute(file, name, "observes_only")[1] if file else None
    return isinstance(value, ast.Constant) and value.value is True


@functools.cache
def overrides_hooks(task: str) -> bool:
    try:
        file, name = find(task, "tasks")
    except NotFound:
        return True
    classes = list(class_and_bases(definition_of(file.resolve(), name))) if file else [None]
    return any(each is None or (each.file != TASK and defines_hook(each)) for each in classes)


def defines_hook(found: Class) -> bool:
    """Unless the class declares `evaluates_only`."""
    names = {node.name for node in found.node.body if isinstance(node, ast.FunctionDef)}
    names |= {target.id for node in found.node.body for target in targets(node) if isinstance(target, ast.Name)}
    return not names.isdisjoint(HOOKS) and not declares(found, "evaluates_only")


def declares(found: Class, attribute: str) -> bool:
    """Whether the class itself sets it to true."""
    return any(
        isinstance(target, ast.Name) and target.id == attribute and isinstance(node.value, ast.Constant) and node.value.value is True
        for node in found.node.body
        if isinstance(node, ast.Assign)
        for target in node.targets
    )


def targets(statement: ast.stmt) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else []
