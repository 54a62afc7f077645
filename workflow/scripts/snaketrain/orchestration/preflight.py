"""Checks everything that could fail later, before any job starts: settings, names, files, columns, metrics."""

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic_core import to_json

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.runs import WITH_NAMES, follows, mentions, read, settings_of
from snaketrain.config.schema import Data, Settings, Source, Tracking
from snaketrain.config.schema.of_extras import hooks, modules
from snaketrain.config.secrets import environment_problems
from snaketrain.data.fetching import describe, misnamed_digests, named_files, source_files
from snaketrain.data.locations import address_problems
from snaketrain.data.surveying import check
from snaketrain.orchestration.effects import effect_problems
from snaketrain.orchestration.named_code import generation_errors, reference_errors
from snaketrain.orchestration.names import RESULTS, data_name, initial, set_name
from snaketrain.orchestration.own_files import references
from snaketrain.orchestration.strategy_declarations import evaluation_errors, strategy_errors
from snaketrain.runtime.credentials import all_set, resolved
from snaketrain.runtime.strict_json import JsonObject

HOW_TO_READ = {"data.format", "data.encoding", "data.columns"}  # if one of these is wrong, errors in what is read are meaningless
WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")
OF_ITS_OWN = ("experiment", "notes", "wait_seconds", "log_every_steps")  # settings of `tracking` in which runs may differ
TRACKING_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")


def examine(config: JsonObject) -> dict[str, Settings]:
    """The runs of a configuration, or one error that lists all problems."""
    reading = read(config)
    problems = [*reading.problems, *environment_problems(config)]
    seen: set[tuple[str, bytes, frozenset[str]]] = set()  # runs of a sweep share most settings: each combination is checked once
    datasets: dict[str, tuple[Data, set[str]]] = {}
    for name, found in reading.runs.items():
        run = found.settings
        if run is None:
            continue
        train, data = run.train, run.data
        named = references(run), train.task, train.metrics, run.evaluate.metrics, run.select, data.label, data.label_kind
        batches = train.batch_size, train.batch_tokens, train.accumulate, train.precision, train.compile
        shared = run.model.adapters is None, train.strategy, train.optimizer, train.groups, batches, run.compute
        for check_settings, relevant, is_consequence in (
            (reference_errors, named, follows_by_path),
            (strategy_errors, shared, mentions),
            (evaluation_errors, shared, mentions),
            (generation_errors, (*named, run.evaluate.generate, data.has_token_types, data.by_class), follows_by_path),
            (sources, (run.data, run.model), follows_by_path),
            (own_test_set, run.data, follows_by_path),
            *(
                (each.problems_of_run, each.relevant_to(run), follows_by_path)
                for each in modules("check")
                if hasattr(each, "problems_of_run")
            ),
        ):
            what = f"{check_settings.__module__} {check_settings.__name__}"
            if (key := (what, to_json(relevant, fallback=repr), frozenset(found.wrong))) not in seen:
                seen.add(key)
                problems += [f"{problem} (run {name})" for problem in check_settings(run) if not is_consequence(problem, found.wrong)]
        datasets.setdefault(data_name(data), (data, found.wrong))
    for name, (data, wrong) in datasets.items():
        # prepared data was checked as a whole already, and missing files were reported above
        if not (wrong & HOW_TO_READ or data.by_class or Path(f"results/data/{name}/manifest.json").exists()):
            problems += [problem for problem in check(data, local_files(data)) if not follows_by_path(problem, wrong)]
    runs = settings_of(reading.runs)
    problems += tracking(runs)
    problems += shell_problems(runs)
    problems += [problem for problems_of in hooks("check", "problems_of_runs") for problem in problems_of(runs)]
    untried = [name for name, found in reading.runs.items() if found.contradicts_itself or follows("data", found.wrong)]
    wrong = set().union(*(found.wrong for found in reading.runs.values()))
    problems += [each for each in effect_problems(runs, untried) if not is_known(each, problems) and not follows_by_path(each, wrong)]
    if not problems:  # a plan, say, would fail or mean nothing with wrong settings
        problems = [problem for problems_of in hooks("check", "problems") for problem in problems_of(runs)]
    if problems:
        raise ConfigurationError(_once(problems))
    return runs


def follows_by_path(problem: str, wrong: set[str]) -> bool:
    """Whether a problem, which begins with its place, is only a consequence of an error there or above."""
    return follows(problem.partition(":")[0], wrong)


def is_known(found: str, problems: Iterable[str]) -> bool:
    """Whether a problem was reported at its place, or above or below it; one of a whole section says nothing about an argument."""
    place = place_of(found)
    others = {other for other in map(place_of, problems) if "." in other or ".arguments." not in place}
    return any(f"{place}.".startswith(f"{other}.") or f"{other}.".startswith(f"{place}.") for other in others)


def place_of(problem: str) -> str:
    """Without the name of a run or dataset in front."""
    place = re.split(r"[: ]", problem, maxsplit=1)[0].rstrip(".")
    return re.sub(rf"^({'|'.join(WITH_NAMES)})\.[^.]+\.", "", place).removesuffix(".use").removesuffix(".arguments")


def sources(run: Settings) -> Iterator[str]:
    """Missing or misnamed local files and packages; a model that has neither weights nor a size."""
    data = run.data
    for setting, source in (
        ("data.train", data.train), ("data.dev", data.dev), ("data.test", data.test),
        *((f"data.{setting}", source) for setting, source in data.train_sets_of_extras.items()),
        ("data.tokenizer", data.tokenizer), ("model.source", run.model.source),
        ("model.initial_weights.source", initial(run)),
    ):  # fmt: skip
        if source and not (source.hub or getattr(source, "use", None)):
            yield from (f"{setting}: {problem}" for problem in files(setting, source))
    yield from shared_files(data)
    yield from without_chat_template(data)
    if run.model.source is None and ".Auto" in run.model.use:
        yield (
            f"model.source: is missing, and {run.model.use} needs it. Name pretrained weights, or a class to initialise randomly, "
            "such as transformers.BertForSequenceClassification."
        )


def own_test_set(run: Settings) -> Iterator[str]:
    """One that is not prepared yet and whose columns are missing; missing files are reported with those of the other sources."""
    reading = run.data.own_test_set
    if reading and not is_prepared("test", reading, run.data) and (given := local_files(reading)):
        yield from check(reading, given, needs_labels=False)


def is_prepared(name: str, reading: Data, data: Data) -> bool:
    """Whether a set beside the training data needs no check: it was checked when it was prepared, or is a dataset class."""
    return reading.by_class or Path(f"{RESULTS}/sets/{set_name(name, reading, data)}/manifest.json").exists()


def without_chat_template(data: Data) -> Iterator[str]:
    """A local tokenizer that cannot write chats."""
    if data.messages is None or data.tokenizer is None or data.tokenizer.is_remote:
        return
    try:
        found = {file.name: file for file in named_files(data.tokenizer).values()}
    except ValueError:  # reported with the other sources
        return
    config = found.get("tokenizer_config.json")
    if "chat_template.jinja" not in found and not (config and '"chat_template"' in config.read_text(encoding="utf-8", errors="replace")):
        yield (
            f"data.messages: {describe(data.tokenizer)} has no chat template. Name a tokenizer that has a chat_template.jinja, or write one into its folder."
        )


def shared_files(data: Data) -> Iterator[str]:
    """Files that are used both for training and for evaluation: the metrics would measure memorisation."""
    given = {split: {file.resolve() for file in found} for split, found in local_files(data).items()}
    trained = set[Path]().union(*(given.get(split, ()) for split in ("train", *data.train_sets_of_extras)))
    for split in ("dev", "test"):
        if both := sorted(trained & given.get(split, set())):
            yield f"data.{split}: {both[0]} is among the files of data.train too. Name others, or leave out data.{split} to split it off from data.train."


def local_files(data: Data) -> dict[str, list[Path]]:
    """The local files of each split: a hub's are not fetched yet, and a dataset class has none."""
    given: dict[str, list[Path]] = {}
    for split, source in data.sources.items():
        if not source.is_remote and source.use is None:
            try:
                given[split] = source_files(source)
            except ValueError:  # reported where the sources are checked
                continue
    return given


def files(setting: str, source: Source) -> Iterator[str]:
    """Problems with the files of one source."""
    if source.path and source.has_address and all_set(source.path):
        yield from (f"{describe(source)}: {problem}" for problem in address_problems(resolved(source.path)))
    if source.is_remote:  # checked once they are here
        return
    try:
        found = named_files(source)
    except ValueError as error:
        yield str(error)
        return
    yield from misnamed_digests(source, found)
    kinds = {file.name for file in found.values()}
    if setting == "data.tokenizer" and "tokenizer.json" not in kinds:
        yield f"{describe(source)} contains no `tokenizer.json`. Name the folder that does."
    for file in found.values():
        if setting == "data.tokenizer" and file.name == "tokenizer.json" and not beginning(file).lstrip().startswith(b"{"):
            yield f"{file} is not a tokenizer: it does not begin like JSON. Fetch it again, or name another."
    if setting == "model.source" and "config.json" not in kinds:
        yield f"{describe(source)} contains no `config.json`, which describes a transformers model. Name the folder that does."
    if setting == "model.initial_weights.source" and not any(name.endswith(WEIGHTS) for name in found):
        yield f"{describe(source)} contains no `.safetensors` or `.pt` file. Name the folder `selection/model` of a run, or a file."


def beginning(file: Path) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(100)


def tracking(runs: dict[str, Settings]) -> Iterator[str]:
    """Tracking settings on which runs disagree: one follower records all runs in one place."""
    for name in (name for name in Tracking.model_fields if name not in OF_ITS_OWN):
        given = {getattr(run.tracking, name): run_name for run_name, run in runs.items()}
        if len(given) > 1:
            values = ", ".join(f"{value if value is not None else 'none'} (run {run})" for value, run in given.items())
            yield f"tracking.{name}: must be the same for all runs, but they set several: {values}. Set it in the common section `tracking`."
    for written in {run.tracking.uri for run in runs.values() if run.tracking.uri is not None and all_set(run.tracking.uri)}:
        uri = resolved(written)
        if uri.partition(":")[0].partition("+")[0].lower() not in TRACKING_SCHEMES or ("://" not in uri and uri != "databricks"):
            yield (
                f"tracking.uri: {written!r} is not the address of a server or database. Write one such as http://host:5000 or "
                "sqlite:////absolute/path/mlflow.db, or leave it out."
            )
        elif uri.partition(":")[0].startswith("sqlite") and not uri.partition("://")[2].strip("/"):
            yield f"tracking.uri: {uri!r} names no file, so that nothing would be kept. Write sqlite:////absolute/path/mlflow.db, or leave it out."
        elif uri.startswith("sqlite:") and "?" in uri:
            yield f"tracking.uri: {written!r} has a question mark, which MLflow takes for the end of the path. Name a database without one."


def shell_problems(runs: dict[str, Settings]) -> Iterator[str]:
    """Commands that the shell cannot read, which would fail in each job, or at the end of all."""
    given = {("bash", "compute.setup", run.compute.setup): name for name, run in runs.items() if run.compute.setup}
    given |= {("sh", "tracking.on_end", run.tracking.on_end): name for name, run in runs.items() if run.tracking.on_end}
    for (shell, setting, text), name in given.items():
        if (
            shutil.which(shell)
            and (read := subprocess.run([shell, "-n", "-c", text], capture_output=True, text=True, errors="replace")).returncode
        ):
            said = (read.stderr.strip() or "a syntax error").splitlines()[0].rpartition("-c: ")[2]
            yield f"{setting}: {shell} cannot read it ({said}). Correct its quotes, brackets and keywords. (run {name})"


def _once(problems: Iterable[str]) -> list[str]:
    """Each problem once, with the first run that has it."""
    first: dict[str, str] = {}
    for problem in problems:
        first.setdefault(problem.partition(" (run ")[0], problem)
    return list(first.values())
