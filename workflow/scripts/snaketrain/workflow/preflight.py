"""Looks for everything that would go wrong later, before any job starts: names, files, columns, metrics."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from snaketrain import module_settings
from snaketrain.data.fetching import describe, misnamed_digests, named_files, source_files
from snaketrain.data.reading import check
from snaketrain.loading import NotFound, find
from snaketrain.metric_modes import mode_of
from snaketrain.mistakes import BadConfiguration, nearest
from snaketrain.settings import Data, Settings
from snaketrain.workflow.inheriting import keywords
from snaketrain.workflow.meaning import code_strings
from snaketrain.workflow.metrics_in_files import UNTOLD
from snaketrain.workflow.metrics_in_files import of_module as metrics_of_module
from snaketrain.workflow.metrics_in_files import of_task as metrics_of_task
from snaketrain.workflow.pipeline import Pipeline, dataset_classes, initial, of_splits, uses_in

# arguments that the trainer gives
FILLED_IN = {"strategies": ("device", "precision"), "schedules": ("done", "steps")}


def examine(pipeline: Pipeline) -> None:
    """Raise one error that tells all problems."""
    problems = []
    seen: set[str] = set()  # the points of a sweep differ in little: what they share is looked at once
    for name, run in pipeline.runs.items():
        named = run.train, run.model.use, run.select, run.data.label_kind, dataset_classes(run.data)
        for look, about in ((names, named), (sources, (run.data, run.model))):
            if (key := f"{look.__name__} {about!r}") not in seen:
                seen.add(key)
                problems += [f"{problem} (run {name})" for problem in look(run)]
    if not problems:
        for name, data in pipeline.datasets.items():
            # data that is prepared already was looked at, whole
            if not Path(f"results/data/{name}/manifest.json").exists():
                problems += readable(data)
    if problems:
        raise BadConfiguration(_once(problems))


def names(run: Settings) -> Iterator[str]:
    """Tasks, models, optimizers and schedules that do not exist; a metric that the task does not log."""
    task_file = of_module = None
    if run.train.task.use == "module":  # all that it is lies in its arguments
        wrong = module_settings.problems(run.train.task.arguments)
        yield from wrong
        of_module = None if wrong else module_settings.ModuleSettings(**run.train.task.arguments)
    for setting, use, place in named_code(run, of_module):
        try:
            if place is None and "." not in use and ":" not in use:
                raise NotFound(f"`{use}` is not complete: write `package.module.Class` or `path/to/file.py:Class`")
            file, attribute = find(use, place)
        except NotFound as error:
            yield f"{setting}: {error}" + ("" if str(error).endswith("?") else ".")
            continue
        if file and (problem := unreadable(file)):
            yield f"{setting}: `{use}` imports {problem}"
        if file and place in FILLED_IN:
            given = run.train.strategy.arguments if place == "strategies" else run.train.schedule.arguments
            yield from misnamed_arguments(f"{setting.removesuffix('.use')}.arguments", file, attribute, given, FILLED_IN[place])
        if place == "tasks" and file:
            task_file = (file, attribute)
    try:
        metrics = metrics_of_module(of_module) if of_module else metrics_of_task(*task_file, run.data.label_kind) if task_file else None
        if metrics and metrics.get(run.select.metric) != UNTOLD:
            where = "" if run.data.label_kind == "class" else f" where data.label_kind is {run.data.label_kind}"
            mode_of(run.select.metric, metrics, run.select.mode, where)
    except SystemExit as error:
        yield str(error)


def named_code(run: Settings, of_module: module_settings.ModuleSettings | None) -> Iterator[tuple[str, str, str | None]]:
    """Every setting that names code, the name, and the place of short names."""
    yield "train.task.use", run.train.task.use, "tasks"
    yield "model.use", run.model.use, None
    yield "train.optimizer.use", run.train.optimizer.use, None
    yield "train.schedule.use", run.train.schedule.use, "schedules"
    if run.train.strategy.use != "auto":
        yield "train.strategy.use", run.train.strategy.use, "strategies"
    yield from ((f"data.{split}.use", source.use, None) for split, source in of_splits(run.data).items() if source.use)
    uses = of_module.uses if of_module else uses_in(run.train.task.arguments)
    yield from (("train.task.arguments", use, None) for use in uses)


def misnamed_arguments(setting: str, file: Path, name: str, given: dict[str, Any], filled_in: tuple[str, ...]) -> Iterator[str]:
    """Arguments that a class or function does not take, and those it lacks."""
    found = keywords(file, name)
    if found is None:
        return
    taken, needed = ([each for each in names if each not in filled_in] for names in found)
    known = f"It takes: {', '.join(taken)}." if taken else "It takes none."
    for each in given:
        if each not in taken:
            yield f"{setting}.{each}: no such argument{nearest(each, taken)} {known}"
    for each in needed:
        if each not in given:
            yield f"{setting}.{each}: is missing. Give it a value."


@functools.cache
def unreadable(file: Path) -> str | None:
    """What is wrong with a module that a user's own file imports; its digest is taken before any job."""
    try:
        code_strings(file)
    except SyntaxError as error:
        return f"{error.filename}, line {error.lineno}: {error.msg}. Correct the file."
    return None


def sources(run: Settings) -> Iterator[str]:
    """Local files and packages that are not there, or not under these names; a model that has neither weights nor a size."""
    data = run.data
    for setting, source in (
        ("data.train", data.train), ("data.dev", data.dev), ("data.test", data.test),
        ("data.tokenizer", data.tokenizer), ("model.source", run.model.source),
        ("model.initial_weights.source", initial(run)),
    ):  # fmt: skip
        if source and not source.hub and not getattr(source, "use", None):
            try:
                names = named_files(source)
            except ValueError as error:
                yield f"{setting}: {error}"
                continue
            yield from (f"{setting}: {problem}" for problem in misnamed_digests(source, names))
            if source is data.tokenizer and "tokenizer.json" not in {file.name for file in names.values()}:
                yield f"{setting}: {describe(source)} holds no `tokenizer.json`. Name the folder that does."
            if source is initial(run) and not any(name.endswith(".safetensors") for name in names):
                yield f"{setting}: {describe(source)} holds no `.safetensors` file. Name the folder `selection/model` of a run, or a file."
    if run.model.source is None and ".Auto" in run.model.use:
        yield (
            f"model.source: is missing, and {run.model.use} needs it. Name pretrained weights, or a class for a random start "
            "such as transformers.BertForSequenceClassification."
        )


def readable(data: Data) -> list[str]:
    """What a look into the files shows; files of a hub are not there yet, and a dataset class is not asked."""
    given = {split: source for split, source in of_splits(data).items() if not source.hub}
    return [] if data.by_class else check(data, {split: source_files(source) for split, source in given.items()})


def _once(problems: list[str]) -> list[str]:
    """The same problem of several runs once, with the first of them."""
    first: dict[str, str] = {}
    for problem in problems:
        first.setdefault(problem.partition(" (run ")[0], problem)
    return list(first.values())
