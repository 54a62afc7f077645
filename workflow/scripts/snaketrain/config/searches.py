"""Reads the section `search`: which sweeps are thinned out while they train, and how."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from pydantic import ValidationError

from snaketrain.config.errors import bad_name, expectation, nearest, shown
from snaketrain.config.expanding import Change, changes_by_run
from snaketrain.config.schema import Section, Settings
from snaketrain.config.schema.search import Sampling, Search
from snaketrain.config.trials import Trials, is_sampled
from snaketrain.runtime.strict_json import Json, JsonObject


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
            yield from setting_problems(Search, name, settings)
            yield from _different_measures(str(name), {run: runs[run] for run in runs_of_sweep(str(name), changes) if run in runs})


def _sampling_problems(name: str, settings: Json, sweeps: list[str]) -> Iterator[str]:
    if message := bad_name(name):
        yield f"search.{shown(name)[1:-1]}: {message}"
    elif name in sweeps:
        yield f"search.{name}: has a `space` to sample from, but there is a sweep of this name, too. Rename one of them."
    elif not (problems := list(setting_problems(Sampling, name, settings))) and not Trials.read(name).trials:
        yield f"search.{name}: has sampled no runs yet. Start the workflow with `.venv/bin/snaketrain sample`, which samples them (docs/search.md)."
    else:
        yield from problems


def setting_problems(section: type[Section], name: str, settings: Json) -> Iterator[str]:
    """Errors in one search."""
    try:
        section.model_validate({} if settings is None else settings)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            place = ".".join(["search", name, *map(str, item["loc"])])
            known = list(section.model_fields)
            yield (
                f"{place}: no such setting{nearest(item['loc'][-1], known)} Known here: {', '.join(known)}."
                if item["type"] == "extra_forbidden"
                else f"{place}: {expectation(item)}."
            )


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
