"""Whether what a run generates can be generated: by its task and strategy, and from its data."""

import ast
from collections.abc import Iterator

from pydantic import ValidationError

from snaketrain.config.errors import expectation, nearest
from snaketrain.config.references import NotFound, find
from snaketrain.config.schema import Settings, Use
from snaketrain.config.schema.evaluation import TEXT_METRICS, Generate
from snaketrain.config.sizes import is_used
from snaketrain.orchestration.inspection.code_references import CHECKED_BY_CLASS
from snaketrain.orchestration.inspection.definitions import class_and_bases, definition_of
from snaketrain.orchestration.inspection.strategies import InvalidDeclaration, strategy_info
from snaketrain.runtime.strict_json import Json

ARGUMENT = "train.task.arguments.generate"
TASKS = ("causal_lm", "seq2seq")


def generation_errors(run: Settings) -> Iterator[str]:
    task, in_training = run.train.task.use, run.train.task.arguments.get("generate")
    if task in TASKS and in_training is not None:
        yield from setting_errors(in_training)
    if task in TASKS and run.select.metric in TEXT_METRICS and in_training is None:
        yield (
            f"select.metric: {run.select.metric} is that of generated answers, and the evaluations of the training generate none. "
            f"Set {ARGUMENT}, such as {{max_new_tokens: 64}}, or name another metric."
        )
    given = "evaluate.generate" if run.evaluate.generate else ARGUMENT if task in TASKS and in_training is not None else None
    if given is None:
        return
    if not takes_generate(task):
        yield f"{given}: train.task {task} generates nothing. Use one of {', '.join(TASKS)}, or remove it."
    if task == "causal_lm" and not (run.data.has_token_types or run.data.by_class):
        yield f"{given}: the data marks no answers to be generated. Name the columns of prompt and answer in data.text, or remove it."
    if not generates(run.train.strategy):
        yield f"{given}: train.strategy {described(run.train.strategy)} cannot generate, since parts of a model do not run by themselves. Use fsdp, or remove it."


def prediction_errors(run: Settings) -> Iterator[str]:
    """Inputs of `predict` for which text is to be generated, by a task or strategy that cannot."""
    task, data = run.train.task.use, run.data
    needed = f"predict: the data has data.{'target' if data.target else 'messages'}, so that" if data.target or data.messages else ""
    for name, inputs in run.predict.items():
        if not inputs.asks_for_text(data):
            continue
        if not takes_generate(task) and (needed or inputs.generate):
            yield f"{needed or f'predict.{name}.generate:'} text is generated, which train.task {task} cannot. Use one of {', '.join(TASKS)}, or remove it."
        elif takes_generate(task) and not generates(run.train.strategy):
            yield (
                f"predict.{name}: train.strategy {described(run.train.strategy)} cannot generate, since parts of a model do not run by themselves. "
                "Use fsdp, or remove it."
            )


def setting_errors(value: Json, where: str = ARGUMENT) -> Iterator[str]:
    """Errors in the settings of a generation that no section of the configuration holds, each with its place."""
    try:
        Generate.model_validate(value)
    except ValidationError as error:
        for item in error.errors():
            place = ".".join([where, *map(str, item["loc"])])
            if item["type"] == "extra_forbidden":
                yield f"{place}: no such setting{nearest(str(item['loc'][-1]), sorted(Generate.model_fields))}"
            else:
                yield f"{place}: {expectation(item)}."


def takes_generate(task: str) -> bool:
    """Whether the task can be told to generate; a class of a user's may, too."""
    if task in CHECKED_BY_CLASS:
        return False
    try:
        file, name = find(task, "tasks")
    except NotFound:  # reported with the other names
        return True
    for each in class_and_bases(definition_of(file.resolve(), name)) if file else [None]:
        if each is None:
            return True
        for node in each.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                if any(argument.arg == "generate" for argument in (*node.args.args, *node.args.kwonlyargs)):
                    return True
                if not node.args.kwarg:
                    return False
    return False


def generates(strategy: Use) -> bool:
    try:
        return strategy_info(strategy.use).generates and not preventing(strategy)
    except InvalidDeclaration:  # reported with the strategies
        return True


def preventing(strategy: Use) -> str | None:
    """The argument with which no text is generated.

    With sequence parallelism, modules expect pieces of a sequence, not single tokens; with a pipeline, the keys of earlier tokens are
    those of all stages; ranks of `expert` need each other for every token, but their answers differ in length.
    """
    given = strategy.arguments
    if given.get("sequence_parallel"):
        return "sequence_parallel"
    return next((name for name in ("pipeline", "expert") if is_used(given, name)), None)


def described(strategy: Use) -> str:
    argument = preventing(strategy)
    return f"{strategy.use} with {argument}" if argument else strategy.use
