"""Looks for everything that would go wrong later, before any job starts: settings, names, files, columns, metrics."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.runs import read, settings_of
from snaketrain.config.schema import Data, Settings, Source
from snaketrain.config.validating import follows, mentions
from snaketrain.data.sources.fetching import describe, misnamed_digests, named_files, source_files
from snaketrain.data.sources.reading import check
from snaketrain.orchestration.inspection.code_references import reference_errors
from snaketrain.orchestration.inspection.parameter_patterns import pattern_errors
from snaketrain.orchestration.inspection.strategy_declarations import strategy_errors
from snaketrain.orchestration.names import data_name, initial
from snaketrain.orchestration.own_files import dataset_classes, of_splits
from snaketrain.runtime.credentials import CannotTellApart
from snaketrain.runtime.json_types import JsonObject

HOW_TO_READ = {"data.format", "data.encoding", "data.columns"}  # where one of these is wrong, what is read may be nonsense
MOST_FILES = 50  # of a source that are tried to be opened
TRACKING_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")


def examine(config: JsonObject) -> dict[str, Settings]:
    """The runs of a configuration, or one error that tells all that is wrong with it."""
    reading = read(config)
    problems = list(reading.problems)
    seen: set[str] = set()  # the points of a sweep differ in little: what they share is looked at once
    datasets: dict[str, tuple[Data, set[str]]] = {}
    for name, found in reading.runs.items():
        run = found.settings
        if run is None:
            continue
        train, data = run.train, run.data
        arguments = data.train.arguments, data.dev and data.dev.arguments, data.test and data.test.arguments
        named = (
            train.task,
            train.strategy,
            train.optimizer,
            train.schedule,
            train.callbacks,
            run.model,
            run.select,
            data.label_kind,
            arguments,
            dataset_classes(data),
        )
        shared = train.strategy, train.batch_size, train.batch_tokens, train.accumulate, run.compute
        for look, about, only_follows in (
            (reference_errors, named, follows_by_path),
            (strategy_errors, shared, mentions),
            (sources, (run.data, run.model), follows_by_path),
        ):
            if (key := f"{look.__name__} {about!r} {sorted(found.wrong)}") not in seen:
                seen.add(key)
                problems += [f"{problem} (run {name})" for problem in look(run) if not only_follows(problem, found.wrong)]
        with contextlib.suppress(CannotTellApart):  # which the pipeline tells
            datasets.setdefault(data_name(data), (data, found.wrong))
    for name, (data, wrong) in datasets.items():
        # prepared data was checked as a whole already, and missing files were reported above
        if not wrong & HOW_TO_READ and not Path(f"results/data/{name}/manifest.json").exists():
            problems += [problem for problem in readable(data) if not follows_by_path(problem, wrong)]
    runs = settings_of(reading.runs)
    with_model = {name: run for name, run in runs.items() if not follows("model", reading.runs[name].wrong)}
    for name, errors in zip(with_model, pattern_errors(with_model.values()), strict=True):
        problems += [f"{problem} (run {name})" for problem in errors if not follows_by_path(problem, reading.runs[name].wrong)]
    problems += tracking(runs)
    if problems:
        raise ConfigurationError(_once(problems))
    return runs


def follows_by_path(problem: str, wrong: set[str]) -> bool:
    """Whether a problem, which begins with its place, only follows from what is wrong there or above."""
    return follows(problem.partition(":")[0], wrong)


def sources(run: Settings) -> Iterator[str]:
    """Local files and packages that are not there, or not under these names; a model that has neither weights nor a size."""
    data = run.data
    for setting, source in (
        ("data.train", data.train), ("data.dev", data.dev), ("data.test", data.test),
        ("data.tokenizer", data.tokenizer), ("model.source", run.model.source),
        ("model.initial_weights.source", initial(run)),
    ):  # fmt: skip
        if source and not source.hub and getattr(source, "use", None) is None:
            yield from (f"{setting}: {problem}" for problem in files(setting, source))
    yield from shared_files(data)
    if run.model.source is None and ".Auto" in run.model.use:
        yield (
            f"model.source: is missing, and {run.model.use} needs it. Name pretrained weights, or a class for a random start "
            "such as transformers.BertForSequenceClassification."
        )


def shared_files(data: Data) -> Iterator[str]:
    """Files that are to be trained on and to be judged by: what was learnt by heart would count as known."""
    given = {split: set(found) for split, found in _local_files(data).items()}
    for split in ("dev", "test"):
        if both := sorted(given.get("train", set()) & given.get(split, set())):
            yield f"data.{split}: {both[0]} is among the files of data.train too. Name others, or leave out data.{split}, to cut it from data.train."


def _local_files(data: Data) -> dict[str, list[Path]]:
    """Of each split, where they are at hand: those of a hub are not yet, and a dataset class has none."""
    given: dict[str, list[Path]] = {}
    for split, source in of_splits(data).items():
        if not source.hub and source.use is None:
            try:
                given[split] = source_files(source)
            except ValueError:  # told where the sources are looked at
                continue
    return given


def files(setting: str, source: Source) -> Iterator[str]:
    """What is wrong with the files of one source."""
    try:
        found = named_files(source)
    except ValueError as error:
        yield str(error)
        return
    yield from misnamed_digests(source, found)
    for file in list(found.values())[:MOST_FILES]:
        if not os.access(file, os.R_OK):
            yield f"{file} cannot be read: {describe(source)} is for others to read. Change its permissions, or name another."
            return
    kinds = {file.name for file in found.values()}
    if setting == "data.tokenizer" and "tokenizer.json" not in kinds:
        yield f"{describe(source)} holds no `tokenizer.json`. Name the folder that does."
    for file in found.values():
        if setting == "data.tokenizer" and file.name == "tokenizer.json" and not beginning(file).lstrip().startswith(b"{"):
            yield f"{file} is no tokenizer: it does not begin as JSON does. Fetch it again, or name another."
    if setting == "model.source" and "config.json" not in kinds:
        yield f"{describe(source)} holds no `config.json`, which describes a model of transformers. Name the folder that does."
    if setting == "model.initial_weights.source" and not any(name.endswith(".safetensors") for name in found):
        yield f"{describe(source)} holds no `.safetensors` file. Name the folder `selection/model` of a run, or a file."


def beginning(file: Path) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(100)


def readable(data: Data) -> list[str]:
    """What a look into the files shows."""
    return [] if data.by_class else check(data, _local_files(data))


def tracking(runs: dict[str, Settings]) -> Iterator[str]:
    """One follower brings all runs to one place."""
    for name in ("uri", "local_store", "register_models"):
        given = {getattr(run.tracking, name): run_name for run_name, run in runs.items()}
        if len(given) > 1:
            told = ", ".join(f"{value if value is not None else 'none'} (run {run})" for value, run in given.items())
            yield f"tracking.{name}: is one for all runs, but they name several: {told}. Set it in the common section `tracking`."
    for uri in {run.tracking.uri for run in runs.values() if run.tracking.uri is not None}:
        if uri.partition(":")[0].partition("+")[0].lower() not in TRACKING_SCHEMES or ("://" not in uri and uri != "databricks"):
            yield (
                f"tracking.uri: {uri!r} is no address of a server or database. Write one such as http://host:5000 or "
                "sqlite:////absolute/path/mlflow.db, or leave it out."
            )


def _once(problems: Iterable[str]) -> list[str]:
    """The same problem of several runs once, with the first of them."""
    first: dict[str, str] = {}
    for problem in problems:
        first.setdefault(problem.partition(" (run ")[0], problem)
    return list(first.values())
