"""The code that a run names, read from files without importing it: whether it exists, and what is measured and generated; `checking/calls.py` imports it, and binds its arguments."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from snaketrain.config.errors import nearest, problems_of
from snaketrain.config.references import NotFound, find, module_file
from snaketrain.config.schema import Metric, Settings, Train, Use
from snaketrain.config.schema.evaluation import TEXT_METRICS, Generate
from snaketrain.config.schema.tasks import CHECKED_BY_CLASS, ModuleSettings, TextClassificationSettings, problems
from snaketrain.config.sizes import is_used
from snaketrain.labels import label_kind, metrics_by_label_kind
from snaketrain.orchestration.code_digest import code_digests
from snaketrain.orchestration.definitions import class_and_bases, class_attribute, definition_of
from snaketrain.orchestration.own_files import Reference, references
from snaketrain.orchestration.strategy_declarations import InvalidDeclaration, strategy_info
from snaketrain.tasks.metric_names import KNOWN, MODES, Known, Modes, is_short, mode_of, modes_of, modes_of_module, short_names

TEXT_TASKS = ("text_classification", "causal_lm", "masked_lm", "seq2seq")  # their models are from transformers


def reference_errors(run: Settings) -> Iterator[str]:
    """Tasks, models, optimizers and the like that do not exist; a metric that the task does not log."""
    wrong = problems(run.train.task.arguments) if run.train.task.use == "module" else []
    yield from wrong
    if run.train.task.use == "text_classification":
        yield from loss_errors(run)
    missing = [problem for each in references(run) if (problem := missing_code(each))]
    yield from missing
    yield from named_metric_errors(run)
    if not missing or run.train.task.use != "module" or wrong:  # otherwise what determines the metrics could not be read
        yield from metric_errors(run)


def missing_code(reference: Reference) -> str | None:
    try:
        file, _ = find(reference.use, reference.short_names_in)
    except NotFound as error:
        return f"{reference.setting}: {error}" + ("" if str(error).endswith("?") else ".")
    problem = unreadable(file) if file else None
    return f"{reference.setting}: `{reference.use}` imports {problem}" if problem else None


@functools.cache
def unreadable(file: Path) -> str | None:
    """Why a module that a user's file imports cannot be read as Python; its digest is taken before any job."""
    try:
        code_digests(file)
    except SyntaxError as error:
        return f"{error.filename}, line {error.lineno}: {error.msg}. Correct the file."
    except (OSError, ValueError, RecursionError) as error:
        return f"what cannot be read as Python: {error}. Correct the file."
    return None


# --- what is measured: the names of metrics, and whether higher or lower is better

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
    return None if own is None else own | {name: mode_of_setting(metric, run) for name, metric in run.train.metrics.items()}


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


def mode_of_setting(metric: Metric, run: Settings) -> str | None:
    """Of a metric that a section names; one that does not exist is reported elsewhere."""
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
    modes = modes_of_module(settings, {name: None if mode == UNKNOWN else mode for name, mode in own.items()})
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
    of_classes = sorted(given.keys() - {"loss"})
    if not found and of_classes and not label_kind(run.data.label_kind).has_classes:
        yield f"train.task.arguments: {', '.join(of_classes)}: is for classes, but data.label_kind is {run.data.label_kind}. Remove it."


# --- whether what a run generates can be generated: by its task and strategy, and from its data

ARGUMENT = "train.task.arguments.generate"
TASKS = ("causal_lm", "seq2seq")


def generation_errors(run: Settings) -> Iterator[str]:
    task, in_training = run.train.task.use, run.train.task.arguments.get("generate")
    if task in TASKS and in_training is not None:
        yield from problems_of(Generate, in_training, ARGUMENT)
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
    if why := without_generation(run.train.strategy):
        yield f"{given}: {why}"


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


def without_generation(strategy: Use) -> str | None:
    """Why a strategy generates no text; None if it does.

    With sequence parallelism, modules expect pieces of a sequence, not single tokens; with a pipeline, the keys of earlier tokens are
    those of all stages; ranks of `expert` need each other for every token, but their answers differ in length.
    """
    given = strategy.arguments
    parallel = next((name for name in ("pipeline", "expert") if is_used(given, name)), None)
    preventing = "sequence_parallel" if given.get("sequence_parallel") else parallel
    try:
        if strategy_info(strategy.use).generates and not preventing:
            return None
    except InvalidDeclaration:  # reported with the strategies
        return None
    described = f"{strategy.use} with {preventing}" if preventing else strategy.use
    return f"train.strategy {described} cannot generate, since parts of a model do not run by themselves. Use fsdp, or remove it."
