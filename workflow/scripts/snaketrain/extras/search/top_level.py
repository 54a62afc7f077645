"""The section `search` of the configuration, which thins out a sweep or samples runs, and the runs that were sampled so far."""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from snaketrain.config.errors import ConfigurationError, bad_name, nearest, problems_of, shown
from snaketrain.config.schema import Section, Settings
from snaketrain.config.schema.base import Positive, Seed, with_numbers
from snaketrain.config.sweeps import Change, changes_by_run, of_dev_sets, runs_of_sweep
from snaketrain.runtime.manifests import read_checked, write_checked
from snaketrain.runtime.strict_json import Json, JsonObject

KEY = "search"
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


class SampledRuns(Section):
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


TABLES = {"`search`: for a sweep, by its name": Search, "`search` with a `space`": SampledRuns}  # for the reference of the settings


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


def changes(config: JsonObject) -> Iterator[Change]:
    """The runs that are sampled so far."""
    for search in sampled_searches(config):
        yield from (Change(trial.run, f"search.{search}", trial.settings) for trial in Trials.read(search).trials if not trial.failed)


# --- searches of sweeps


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


def problems(config: JsonObject, changes: Mapping[str, Change], runs: Mapping[str, Settings]) -> Iterator[str]:
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
            searched = runs_of_sweep(str(name), changes)
            yield from _different_measures(str(name), {run: runs[run] for run in searched if run in runs})
            yield from _bases(str(name), searched, runs)


def _bases(name: str, searched: Collection[str], runs: Mapping[str, Settings]) -> Iterator[str]:
    """Runs of the search that another starts from: their training is not the workflow's to demand."""
    for run, settings in runs.items():
        for setting, base in settings.model.bases.items():
            if base in searched:
                yield (
                    f"search.{name}: stops some of its runs early, but run {run} starts from one of them ({setting}: {base}). "
                    "Name a run outside of the sweep, or, once the search is done, the folder selection/model as a path."
                )


def _sampling_problems(name: str, settings: Json, sweeps: list[str]) -> Iterator[str]:
    if message := bad_name(name):
        yield f"search.{shown(name)[1:-1]}: {message}"
    elif name in sweeps:
        yield f"search.{name}: has a `space` to sample from, but there is a sweep of this name, too. Rename one of them."
    elif not (found := problems_of(SampledRuns, settings, f"search.{name}")) and not Trials.read(name).trials:
        yield f"search.{name}: has sampled no runs yet. Start the workflow with `.venv/bin/snaketrain sample`, which samples them (workflow/scripts/snaketrain/extras/search/README.md)."
    else:
        yield from found


def _judged_by(run: Settings) -> str:
    """What a search chooses by; the same for runs that it judges together, by their mean."""
    return repr((run.data, run.model, run.train.model_copy(update={"seed": 0}), run.select.metric, run.select.mode))


def _different_measures(name: str, runs: Mapping[str, Settings]) -> Iterator[str]:
    """Runs can only be ranked by the same metric on the same development set."""
    if len(set(map(_judged_by, runs.values()))) == 1:
        only = (
            "the sweep has a single run" if len(runs) == 1 else "the runs of the sweep differ only in train.seed or in what trains nothing"
        )
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
