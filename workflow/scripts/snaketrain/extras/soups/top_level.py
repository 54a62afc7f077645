"""The section `soups` of the configuration: of which runs the weights are averaged. Each soup is a run of its own, which takes no step."""

import copy
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from pydantic import Field

from snaketrain.config.errors import nearest, problems_of, shown
from snaketrain.config.schema import Section, Settings
from snaketrain.config.sweeps import Change, changes_by_run, runs_of_sweep
from snaketrain.runtime.stages import by_name
from snaketrain.runtime.strict_json import JsonObject, shortened

KEY, MOST_NAMED = "soups", 5  # runs or settings in a message
# what a soup has instead of its first run's settings: it takes no step, and starts from the average
OWN = {"train.steps": 0, "model.initial_weights": None, "select.step": None, "select.average": 1}
REPLACED = (*OWN, "train.epochs", "tracking.notes")
# which must be the same, for weights to fit each other and metrics to be comparable
SAME: dict[str, Any] = dict.fromkeys(("data", "model", "evaluate"), True) | {
    "train": {"task", "metrics", "block_length", "packing"}, "select": {"metric", "mode"},
}  # fmt: skip


class Soup(Section):
    """Averages the selected weights of runs, as long as that improves the development metric."""

    runs: list[str] = Field(min_length=1, description="names of its runs, two or more; the name of a sweep stands for all of its runs")

    def members(self, known: Mapping[str, Change]) -> list[str]:
        """Also names of runs that do not exist, which are told elsewhere."""
        return list(chain.from_iterable((name not in known and runs_of_sweep(name, known)) or [name] for name in self.runs))


TABLES = {"`soups`: for a soup, by the name that its run shall have": Soup}  # for the reference of the settings


def read_soups(config: JsonObject) -> tuple[dict[str, Change], dict[str, list[str]]]:
    """All runs that are no soups, and of each soup without errors the names of its runs."""
    given = config.get(KEY)
    entries = given.items() if isinstance(given, dict) else []
    known = changes_by_run({key: value for key, value in config.items() if key != KEY})[0] if given else {}
    return known, {str(name): Soup.model_validate(each).members(known) for name, each in entries if not problems_of(Soup, each, KEY)}


def changes(config: JsonObject) -> Iterator[Change]:
    """A run for each soup, with the settings of the first of its runs."""
    known, soups = read_soups(config)
    for name, members in soups.items():
        if members[0] in known:
            note = f"Greedy soup of {shortened(members, MOST_NAMED)}; which of them are in it: results/soups/{name}/soup.json."
            yield Change(name, f"{KEY}.{name}", of_soup(known[members[0]].settings) | {"tracking.notes": note})


def of_soup(settings: JsonObject) -> JsonObject:
    """A run's settings, with dotted names or below their sections, with those of a soup instead of its own."""
    kept = copy.deepcopy(
        {key: value for key, value in settings.items() if not f"{key}.".startswith(tuple(f"{each}." for each in REPLACED))}
    )
    for section, _, name in (each.partition(".") for each in REPLACED):
        if isinstance(kept.get(section), dict):
            kept[section].pop(name, None)
    return kept | OWN


def problems(config: JsonObject, changes: Mapping[str, Change], runs: Mapping[str, Settings]) -> Iterator[str]:
    """`runs`: those that are valid so far."""
    given = config.get(KEY)
    if given is not None and not isinstance(given, dict):
        yield f"{KEY}: expects names of soups with their settings below them, not {shown(given)}."
        return
    known, soups = read_soups(config)
    for name, settings in (given or {}).items():
        where, members = f"{KEY}.{name}", soups.get(str(name), [])
        yield from problems_of(Soup, settings, where)
        for run in (run for run in members if run not in known):
            names = [*known, *map(str, config.get("sweeps") or {})]
            yield f"{where}.runs: there is no run or sweep {run!r}{nearest(run, names)} Name some of: {shortened(names, MOST_NAMED)}."
        if members and len(set(members)) < max(2, len(members)):
            yield f"{where}.runs: {shortened(members, MOST_NAMED)}: a soup is the average of two or more runs. Name each of them once."
        yield from no_average(where, [runs[run] for run in members if run in known and run in runs])


def no_average(where: str, runs: list[Settings]) -> Iterator[str]:
    """Weights can only be averaged if they are of the same model and began as the same ones, and compared on the same examples."""
    each = [by_name(run.model_dump(mode="json", include=SAME)) for run in runs]
    names = dict.fromkeys(chain.from_iterable(each))
    if differing := [name for name in names if len({repr(settings.get(name)) for settings in each}) > 1]:
        values = dict.fromkeys(str(settings.get(differing[0])) for settings in each)
        yield (
            f"{where}: its runs differ in {shortened(differing, MOST_NAMED)} ({shortened(list(values), MOST_NAMED)}), so that their weights cannot be averaged, or their metrics not be "
            "compared. Use one value for all, or name others."
        )
    if any(run.model.adapters for run in runs):
        yield f"{where}: its runs have model.adapters, of which no averages were tried. Name runs without adapters."
    at_random = any(run.model.source is None and run.model.initial_weights is None for run in runs)
    if at_random and len({run.train.seed for run in runs}) > 1:
        yield (
            f"{where}: its runs begin with different random weights, since they differ in train.seed, and the average of such weights is no model. "
            "Use one seed for all, or give them weights to start from: model.source."
        )
