"""The section `soups` of the configuration: of which runs the weights are averaged. Each soup is a run of its own, which takes no step."""

import copy
from collections.abc import Iterator, Mapping

from pydantic import Field

from snaketrain.config.errors import nearest, problems_of, shown
from snaketrain.config.schema import Section, Settings
from snaketrain.config.schema.base import is_null
from snaketrain.config.sweeps import Change, changes_by_run, runs_of_sweep
from snaketrain.runtime.stages import by_name
from snaketrain.runtime.strict_json import Json, JsonObject, shortened

KEY = "soups"
# what a soup has instead of its first run's settings: it takes no step, and starts from the average, into which adapters are merged
OWN = {"train.steps": 0, "model.initial_weights": None, "model.adapters": None, "select.step": None, "select.average": 1}
REPLACED = (*OWN, "train.epochs", "tracking.notes")
MOST_NAMED = 5  # runs or settings in a message


class Soup(Section):
    """Averages the selected weights of runs, as long as that improves the development metric."""

    runs: list[str] | None = Field(None, exclude_if=is_null, min_length=2, description="names of two or more runs; or give `sweep`")
    sweep: str | None = Field(None, exclude_if=is_null, description="name of a sweep: all of its runs")

    def contradictions(self) -> Iterator[str]:
        if (self.runs is None) == (self.sweep is None):
            yield "`runs` and `sweep` both say what is averaged: give one of them"
        if twice := sorted({run for run in self.runs or () if (self.runs or []).count(run) > 1}):
            yield f"`runs` names {twice[0]} twice: name each run once"

    def members(self, changes: Mapping[str, Change]) -> list[str]:
        """Also names of runs that do not exist, which are told elsewhere."""
        return list(runs_of_sweep(self.sweep, changes)) if self.sweep else self.runs or []


TABLES = {"`soups`: for a soup, by the name that its run shall have": Soup}  # for the reference of the settings


def read_soups(config: JsonObject) -> dict[str, Soup]:
    """Those without errors."""
    given = config.get(KEY)
    entries = given.items() if isinstance(given, dict) else []
    return {str(name): Soup.model_validate(each) for name, each in entries if not problems_of(Soup, each, KEY)}


def other_runs(config: JsonObject) -> dict[str, Change]:
    """All runs but the soups."""
    return changes_by_run({key: value for key, value in config.items() if key != KEY})[0]


def changes(config: JsonObject) -> Iterator[Change]:
    """A run for each soup, with the settings of the first of its runs."""
    soups = read_soups(config)
    known = other_runs(config) if soups else {}
    for name, soup in soups.items():
        if (members := soup.members(known)) and all(run in known for run in members):
            note = f"Greedy soup of {shortened(members, MOST_NAMED)}; which of them are in it: results/soups/{name}/soup.json."
            yield Change(name, f"{KEY}.{name}", of_soup(known[members[0]].settings, note))


def of_soup(settings: JsonObject, note: str) -> JsonObject:
    """A run's settings, with dotted names or below their sections, with those of a soup instead of its own."""
    kept = copy.deepcopy(
        {key: value for key, value in settings.items() if not f"{key}.".startswith(tuple(f"{each}." for each in REPLACED))}
    )
    for section, _, name in (each.partition(".") for each in REPLACED):
        if isinstance(kept.get(section), dict):
            kept[section].pop(name, None)
    return kept | OWN | {"tracking.notes": note}


def problems(config: JsonObject, changes: Mapping[str, Change], runs: Mapping[str, Settings]) -> Iterator[str]:
    """`runs`: those that are valid so far."""
    given = config.get(KEY)
    if given is None:
        return
    if not isinstance(given, dict):
        yield f"{KEY}: expects names of soups with their settings below them, not {shown(given)}."
        return
    known = {run: change for run, change in changes.items() if not change.where.startswith(f"{KEY}.")}
    for name, settings in given.items():
        where = f"{KEY}.{name}"
        if found := problems_of(Soup, settings, where):
            yield from found
            continue
        soup = Soup.model_validate(settings)
        members = soup.members(changes)
        for run in (run for run in members if run not in known):
            yield f"{where}.runs: there is no run {run!r}{nearest(run, known)} Name some of: {shortened([*known], MOST_NAMED)}."
        if soup.sweep is not None and len(members) < 2:
            sweeps = [str(each) for each in config.get("sweeps") or {}]
            what = f"has one run, {members[0]}" if members else f"does not exist{nearest(soup.sweep, sweeps)[:-1]}"
            yield f"{where}.sweep: {soup.sweep!r} {what}. Name a sweep with two or more runs."
        yield from no_average(where, {run: runs[run] for run in members if run in runs})


def no_average(where: str, runs: Mapping[str, Settings]) -> Iterator[str]:
    """Weights can only be averaged if they are of the same model, began as the same weights, and are measured on the same examples."""
    each = [by_name(compared(run)) for run in runs.values()]
    names = dict.fromkeys(name for settings in each for name in settings)
    if differing := [name for name in names if len({repr(settings.get(name)) for settings in each}) > 1]:
        first = sorted({str(settings.get(differing[0])) for settings in each})
        yield (
            f"{where}: its runs differ in {shortened(differing, MOST_NAMED)} ({shortened(first, MOST_NAMED)}), so that their weights cannot be averaged, or "
            "not be compared. Use one value for all, or name others."
        )
    elif len({run.train.seed for run in runs.values()}) > 1 and begins_at_random(next(iter(runs.values()))):
        yield (
            f"{where}: its runs begin with other random weights, since train.seed differs, and the average of these is no model. Use one seed, "
            "or give the runs weights to start from: model.source."
        )


def compared(run: Settings) -> JsonObject:
    """The settings that must be the same."""
    same: JsonObject = {name: getattr(run, name).as_json for name in ("data", "model", "evaluate")}
    train: Json = run.train.as_json
    return same | {"train": {name: train.get(name) for name in ("task", "metrics", "block_length", "packing")}} | {
        "select": {"metric": run.select.metric, "mode": run.select.mode}
    }  # fmt: skip


def begins_at_random(run: Settings) -> bool:
    """All weights, and not only a new head, which is small beside pretrained weights."""
    initial = run.model.initial_weights
    return run.model.source is None and not (initial and initial.strict and initial.into is None and initial.part is None)
