"""The runs of a configuration: `runs` and `sweeps` expanded into what each run changes, and the section `search`, which thins out sweeps or samples runs."""

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from snaketrain.config.errors import ConfigurationError, bad_name, nearest, problems_of, shown
from snaketrain.config.schema import Section, Settings
from snaketrain.config.schema.base import Positive, Seed, with_numbers
from snaketrain.runtime.manifests import read_checked, write_checked
from snaketrain.runtime.strict_json import Json, JsonObject

Share = Annotated[float, Field(gt=0.0, lt=1.0)]


class Search(Section):
    """Successive halving of a sweep: its runs train up to a rung, are compared on the development set, and only the best continue."""

    rungs: list[Share] = Field([0.1, 0.3], min_length=1, description="shares of a run's steps at which its sweep is thinned out")
    keep: Share = Field(
        0.25, description="share of the runs at a rung that continue, at least one; runs that differ only in `train.seed` count as one"
    )
    keep_tied: Share = Field(
        0.5, description="runs that a paired test on the development set cannot tell from the best continue as well, up to this share"
    )

    def contradictions(self) -> Iterator[str]:
        if self.rungs != sorted(set(self.rungs)):
            yield f"`rungs` ({', '.join(f'{rung:g}' for rung in self.rungs)}) must rise: name each share once, the smallest first"
        if self.keep_tied < self.keep:
            yield f"`keep_tied` ({self.keep_tied:g}) is below `keep` ({self.keep:g}), which continue in any case: make it as large, or larger"


class Range(Section):
    """Values of a setting between two bounds, which are included; whole numbers if both are."""

    low: int | float = Field(description="the lowest")
    high: int | float = Field(description="the highest")
    log: bool = Field(False, description="on a logarithmic scale, as for learning rates")

    def contradictions(self) -> Iterator[str]:
        if self.low >= self.high:
            yield f"`low` ({self.low:g}) is not below `high` ({self.high:g}): swap them, or give a list with one value"
        if self.log and self.low <= 0:
            yield f"`low` ({self.low:g}) is not above 0, which a logarithmic scale needs: raise it, or remove `log`"


class Sampling(Section):
    """Runs whose settings an Optuna sampler proposes, by the results of those before them. They change the common sections, as `runs` do."""

    space: dict[str, Range | list[Json]] = Field(
        min_length=1,
        description="by setting, such as `train.learning_rate`: a range, `{low: 1e-6, high: 1e-3, log: true}`, or a list of values",
    )
    trials: Positive = Field(20, description="runs in all")
    at_once: Positive = Field(4, description="runs that are proposed together, and train at the same time")
    seed: Seed = Field(0, description="seed of the sampler")

    def contradictions(self) -> Iterator[str]:
        if empty := [name for name, values in self.space.items() if values == []]:
            yield f"`space.{empty[0]}` has no value: name some"

    def values(self, name: str) -> Range | list[Json]:
        found = self.space[name]
        return found if isinstance(found, Range) else [with_numbers(value) for value in found]


# --- the runs that a search has sampled so far: `snaketrain sample` records them before it starts the workflow that trains them

FOLDER = Path("results/searches")


@dataclass(frozen=True)
class Trial:
    run: str
    settings: JsonObject
    value: float | None = None  # of the selection metric, once it is known
    failed: bool = False  # it is no longer among the runs


@dataclass(frozen=True)
class Trials:
    basis: str = ""  # digest of the settings that they change
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def read(cls, search: str) -> "Trials":
        path = FOLDER / search / "trials.json"
        if not os.path.isfile(path):  # unlike Path.is_file, False for a name that is too long
            return cls()
        try:
            content = read_checked(path)
            return cls(content["basis"], [Trial(**each) for each in content["trials"]])
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                [
                    f"search.{search}: {path}: {error}. Put a copy of it back, or delete it and run `snaketrain sample`, which writes it again from study.log."
                ]
            ) from None

    def write(self, search: str) -> None:
        write_checked(FOLDER / search / "trials.json", asdict(self))


def is_sampled(given: object) -> bool:
    """Whether an entry of `search` proposes runs, instead of thinning out a sweep."""
    return isinstance(given, dict) and "space" in given


def sampled_searches(config: JsonObject) -> list[str]:
    given = config.get("search")
    return [str(name) for name, entry in given.items() if is_sampled(entry)] if isinstance(given, dict) else []


# --- runs and sweeps

MOST_RUNS = 10_000  # unless `max_runs` says otherwise


class Change(NamedTuple):
    """A run's changes of the common sections, and where in the file they are."""

    run: str
    where: str
    settings: JsonObject


def changes_by_run(config: JsonObject) -> tuple[dict[str, Change], list[str]]:
    """The changes of every run by its name, and problems with names and number of runs."""
    problems: list[str] = []
    entries = {kind: config.get(kind) for kind in ("runs", "sweeps")}
    for kind, given in entries.items():
        if given is not None and not isinstance(given, dict):
            problems.append(f"{kind}: expects names with their settings below them, not {shown(given)}.")
            entries[kind] = None
    changes = [Change(str(name), f"runs.{name}", {} if change is None else change) for name, change in (entries["runs"] or {}).items()]
    most, more = _most_runs(config)
    problems += more
    for sweep, axes in (entries["sweeps"] or {}).items():
        found = _sweep_errors(str(sweep), axes)
        if not found and len(changes) + math.prod(map(len, axes.values())) > most:
            found = [_too_many(str(sweep), axes, len(changes), most)]
            axes = {key: values[:1] for key, values in axes.items()}  # so that other errors show as well
            changes += _points(str(sweep), axes)
        elif not found:
            changes += _points(str(sweep), axes)
        problems += found
    for search in sampled_searches(config):
        changes += [Change(trial.run, f"search.{search}", trial.settings) for trial in Trials.read(search).trials if not trial.failed]
    if not changes and not problems:
        changes = [Change("default", "runs.default", {})]
    named, more = _by_name(changes)
    return named, problems + more


def _most_runs(config: JsonObject) -> tuple[int, list[str]]:
    most = config.get("max_runs")
    if most is None:
        return MOST_RUNS, []
    if isinstance(most, str) and most.isdecimal():
        most = int(most[:20])
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        return MOST_RUNS, [f"max_runs: expects a number greater than 0, not {shown(most)}."]
    return most, []


def _too_many(sweep: str, axes: dict[str, list[Json]], others: int, most: int) -> str:
    counts = [len(values) for values in axes.values()]
    product = f" ({' x '.join(map(str, counts))})" if len(counts) > 1 else ""
    beside = f" beside {others} other runs" if others else ""
    return (
        f"sweeps.{sweep}: makes {math.prod(counts):,} runs{product}{beside}, and more than {most:,} are treated as an error. "
        "Give fewer values, or set max_runs."
    )


def _by_name(changes: list[Change]) -> tuple[dict[str, Change], list[str]]:
    named: dict[str, Change] = {}
    lower: dict[str, str] = {}  # some file systems, and readers, do not distinguish Wide from wide
    problems = []
    for change in changes:
        if change.run in ("None", "True", "False"):
            problems.append(f"{change.where}: YAML reads this name as a value, not as text. Put it in quotes, or use another name.")
        elif message := bad_name(change.run):
            problems.append(f"{shown(change.where)[1:-1]}: {message}")
        elif not isinstance(change.settings, dict):
            problems.append(f"{change.where}: expects settings such as `train.seed: 1`, not {shown(change.settings)}.")
        elif change.run.lower() in lower:
            problems.append(
                f"{change.where}: there is already a run named {change.run!r}; names must differ in more than upper and lower case."
            )
        else:
            named[change.run] = change
            lower[change.run.lower()] = change.run
    return named, problems


def _sweep_errors(sweep: str, axes: Json) -> list[str]:
    where = f"sweeps.{sweep}"
    if message := bad_name(sweep):
        return [f"{shown(where)[1:-1]}: {message}"]
    if not isinstance(axes, dict) or not axes:
        return [f"{where}: expects settings with lists of values, such as `train.seed: [0, 1, 2]`, not {shown(axes)}."]
    found = [
        f"{where}.{key}: expects a list of values, not {shown(values)}."
        for key, values in axes.items()
        if not isinstance(values, list) or not values
    ]
    for key, values in axes.items():
        texts = Counter(map(repr, values)) if isinstance(values, list) else {}
        found += [f"{where}.{key}: has {text} {count} times. Name each value once." for text, count in texts.items() if count > 1]
    return found


def _points(sweep: str, axes: dict[str, list[Json]]) -> list[Change]:
    labels = [_labels(key, values) for key, values in axes.items()]
    return [
        Change("-".join([sweep, *names]), f"sweeps.{sweep}", dict(zip(axes, point, strict=True)))
        for names, point in zip(itertools.product(*labels), itertools.product(*axes.values()), strict=True)
    ]


def _labels(key: str, values: list[Json]) -> list[str]:
    """How each value of a sweep appears in a run's name: as itself, or as its position in the list if a folder cannot have that name."""
    texts = [str(value) for value in values]
    names = [text if re.fullmatch(r"[A-Za-z0-9._+-]{1,30}", text) else str(place) for place, text in enumerate(texts)]
    return [f"{str(key).rpartition('.')[2]}={name}" for name in names]


# --- searches


class SearchedSweep(NamedTuple):
    search: Search
    runs: tuple[str, ...]


def read_searches(config: JsonObject) -> dict[str, SearchedSweep]:
    """By the name of the sweep; of a configuration without errors."""
    changes = changes_by_run(config)[0] if config.get("search") else {}
    return {
        str(name): SearchedSweep(Search.model_validate(given or {}), runs_of_sweep(str(name), changes))
        for name, given in (config.get("search") or {}).items()
        if not is_sampled(given)
    }


def runs_of_sweep(sweep: str, changes: Mapping[str, Change]) -> tuple[str, ...]:
    return tuple(sorted(run for run, change in changes.items() if change.where == f"sweeps.{sweep}"))


def search_problems(config: JsonObject, changes: Mapping[str, Change], runs: Mapping[str, Settings]) -> Iterator[str]:
    """`runs`: those that are valid so far."""
    given = config.get("search")
    if given is None:
        return
    if not isinstance(given, dict):
        yield f"search: expects names of sweeps with their settings below them, not {shown(given)}."
        return
    sweeps = [str(name) for name in config.get("sweeps") or {}]
    for name, settings in given.items():
        if is_sampled(settings):
            yield from _sampling_problems(str(name), settings, sweeps)
        elif str(name) not in sweeps:
            known = f" The sweeps are: {', '.join(sweeps)}." if sweeps else " Add it to `sweeps`."
            yield f"search.{name}: there is no such sweep{nearest(name, sweeps)}{known}"
        else:
            yield from problems_of(Search, settings, f"search.{name}")
            yield from _different_measures(str(name), {run: runs[run] for run in runs_of_sweep(str(name), changes) if run in runs})


def _sampling_problems(name: str, settings: Json, sweeps: list[str]) -> Iterator[str]:
    if message := bad_name(name):
        yield f"search.{shown(name)[1:-1]}: {message}"
    elif name in sweeps:
        yield f"search.{name}: has a `space` to sample from, but there is a sweep of this name, too. Rename one of them."
    elif not (problems := problems_of(Sampling, settings, f"search.{name}")) and not Trials.read(name).trials:
        yield f"search.{name}: has sampled no runs yet. Start the workflow with `.venv/bin/snaketrain sample`, which samples them (docs/search.md)."
    else:
        yield from problems


def _different_measures(name: str, runs: Mapping[str, Settings]) -> Iterator[str]:
    """Runs can only be ranked by the same metric on the same development set."""
    if len({repr(without_seed(run)) for run in runs.values()}) == 1:
        only = "the sweep has a single run" if len(runs) == 1 else "the runs of the sweep differ only in train.seed"
        yield f"search.{name}: {only}, so there is nothing to choose from. Remove the search, or add values."
    for setting, values in {
        "data.name": {run.data.name for run in runs.values()},
        **of_dev_sets(runs.values()),
        "select.metric": {run.select.metric for run in runs.values()},
        "select.mode": {str(run.select.mode) for run in runs.values()},
    }.items():
        if len(values) > 1:
            yield f"search.{name}: its runs differ in {setting} ({', '.join(sorted(values))}), so they cannot be ranked. Use one value for all."
    if any(run.train.steps == 0 for run in runs.values()):
        yield f"search.{name}: train.steps is 0, so that nothing is trained. Remove the search."


def of_dev_sets(runs: Collection[Settings]) -> dict[str, set[str]]:
    """The values of each setting that changes which examples are in the development set."""
    return {
        "data.split_seed": {str(run.data.split_seed if run.data.dev is None or run.data.limit_dev else None) for run in runs},
        "data.dev_fraction": {str(run.data.dev_fraction if run.data.dev is None else None) for run in runs},
        "data.limit_dev": {str(run.data.limit_dev) for run in runs},
        "data.dev": {str(run.data.dev) for run in runs},
    }


def unranked_sweeps(config: JsonObject, runs: Mapping[str, Settings]) -> Iterator[str]:
    """Notes about sweeps over the development set of one dataset: they are allowed, but there is no order between their runs."""
    changes = changes_by_run(config)[0]
    for name in config.get("sweeps") or {}:
        of_sweep = [runs[run] for run in runs_of_sweep(str(name), changes)]
        of_data = [[run for run in of_sweep if run.data.name == data] for data in dict.fromkeys(run.data.name for run in of_sweep)]
        differing = [setting for of_one in of_data for setting, values in of_dev_sets(of_one).items() if len(values) > 1]
        if settings := list(dict.fromkeys(differing)):
            yield (
                f"sweeps.{name}: its runs have different development sets ({', '.join(settings)}), so that the comparison does not rank those "
                "of one set against those of another."
            )


def without_seed(run: Settings) -> Settings:
    """The same for runs that a search judges together, by their mean."""
    return run.model_copy(update={"train": run.train.model_copy(update={"seed": 0})})
