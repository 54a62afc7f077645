"""Reads the settings of every run from the configuration, or lists all errors in it.

Runs start from the common sections and change some settings; a sweep makes one run of each combination of its values. Invalid settings are
reported and left out, so that they do not hide other errors.
"""

import copy
import functools
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from snaketrain.config.errors import (
    ConfigurationError,
    bad_name,
    errors_in,
    fields_at,
    near,
    nearest,
    problem,
    shown,
)
from snaketrain.config.files import ALTERNATIVES, merged, value_at, without_alternatives
from snaketrain.config.other_trainers import from_elsewhere
from snaketrain.config.schema import Settings
from snaketrain.config.schema.base import CONTRADICTIONS_LATER, sections_in
from snaketrain.config.schema.of_extras import hooks, modules
from snaketrain.config.secrets import literal_secrets
from snaketrain.config.sweeps import Change, changes_by_run
from snaketrain.runtime.strict_json import Json, JsonObject

SECTIONS = tuple(Settings.model_fields)
WITH_NAMES = ("datasets", "runs", "sweeps", *(extra.KEY for extra in modules("top_level")))  # below them are names that the user gives
TOP_LEVEL = (*SECTIONS, *WITH_NAMES)
CONTRADICTION, BETWEEN_SECTIONS = "contradiction", "between sections"  # instead of pydantic's type of error
# these errors depend on several settings, so that a run can correct them
CORRECTABLE = ("missing", "value_error", CONTRADICTION, BETWEEN_SECTIONS)
ROUNDS = 20  # leaving a setting out may cause another error
STAND_IN = {
    "train": {"use": "of_nothing.Known"},
    "label": None,
    "max_length": None,
}  # for a `data` section that is too incomplete to validate


class Validated(NamedTuple):
    settings: Settings | None  # without the invalid ones
    problems: dict[str, str]  # each with pydantic's type of error
    wrong: set[str]  # their paths; errors at or below these are only consequences

    @property
    def contradicts_itself(self) -> bool:
        return not {CONTRADICTION, BETWEEN_SECTIONS}.isdisjoint(self.problems.values())


class Reading(NamedTuple):
    """A configuration as far as it is valid."""

    runs: dict[str, Validated]
    problems: list[str]


def read_runs(config: JsonObject) -> dict[str, Settings]:
    """The settings of every run by its name."""
    reading = read(config)
    if reading.problems:
        raise ConfigurationError(reading.problems)
    return settings_of(reading.runs)


def settings_of(runs: dict[str, Validated]) -> dict[str, Settings]:
    return {run: found.settings for run, found in runs.items() if found.settings is not None}


def read(config: JsonObject) -> Reading:
    """The settings of every run without the invalid ones, and all errors."""
    problems = [_no_such_section(key) for key in config if key not in TOP_LEVEL]
    problems += literal_secrets(config)
    datasets, dataset_errors = _datasets(config)
    changes, found = changes_by_run(config)
    common = _with_named_data({key: config[key] for key in SECTIONS if config.get(key) is not None}, datasets)
    alone = validated(common)
    right = _right_sections(common, alone)
    runs: dict[str, Validated] = {}
    for run, change in changes.items():
        raw, more = _changed(common, change, datasets)
        runs[run] = validated(raw, {name: section for name, section in right.items() if raw[name] is common[name]})
        found += more
    known = {
        f"data{problem.partition(name)[2]}" for name in datasets for problem in dataset_errors if problem.startswith(f"datasets.{name}.")
    }
    problems += dataset_errors + found + _without_repeats(alone, runs, changes, known)
    for problems_of in hooks("top_level", "problems"):
        problems += problems_of(config, changes, settings_of(runs))
    return Reading(runs or {"default": alone}, problems)


def _no_such_section(key: object) -> str:
    section, dot, setting = str(key).partition(".")
    if dot and section in SECTIONS:
        nested = "".join(f"{{{part}: " for part in setting.split(".")) + "..." + "}" * len(setting.split("."))
        return f"{key}: names with dots are for runs and sweeps. In the file itself, write it below its section: {section}: {nested}."
    if ours := from_elsewhere(key):
        return f"{key}: no such section.{ours}"
    return f"{key}: no such section{nearest(key, TOP_LEVEL)} Known: {', '.join(TOP_LEVEL)}."


def _without_repeats(alone: Validated, runs: dict[str, Validated], changes: dict[str, Change], known: set[str]) -> list[str]:
    """Reports an error in the common sections once instead of for every run, and not for runs that correct it."""
    everywhere = set.intersection(*(set(found.problems) for found in runs.values())) if runs else None
    common = {p for p, kind in alone.problems.items() if kind not in CORRECTABLE or everywhere is None or p in everywhere}
    shared = [p for p in alone.problems if p in common and p not in known]
    return shared + [
        f"{changes[run].where}.{p}" for run, found in runs.items() for p in found.problems if p not in common and p not in known
    ]


def _right_sections(common: JsonObject, alone: Validated) -> JsonObject:
    """The common sections without errors, which the runs that do not change them share: a sweep may have thousands."""
    wrong = {problem.partition(":")[0].partition(".")[0] for problem in alone.problems}
    return {name: getattr(alone.settings, name) for name in common if name not in wrong} if alone.settings else {}


def _conflicting_alternatives(raw: JsonObject) -> list[str]:
    return [
        f"{one}: is given instead of {other}, which is given as well. Keep one of the two."
        for one, other in ALTERNATIVES.items()
        if value_at(raw, one) is not None and value_at(raw, other) is not None
    ]


def _changed(common: JsonObject, change: Change, datasets: dict[str, JsonObject]) -> tuple[JsonObject, list[str]]:
    """The common sections with a run's changes: a dotted key replaces a value, nested ones are merged."""
    problems: list[str] = []
    own: JsonObject = {}
    for key, value in change.settings.items():
        if str(key).split(".")[0] not in SECTIONS:
            ours = from_elsewhere(key)
            problems.append(f"{change.where}.{key}: no such setting" + (f".{ours}" if ours else nearest(str(key).split(".")[0], SECTIONS)))
        else:
            own[str(key)] = value
    problems += [f"{change.where}: {twice}" for twice in _given_twice(own)]
    nothing: JsonObject = {}
    changed = functools.reduce(_set, own.items(), nothing)
    raw = without_alternatives(common, changed)
    raw = {name: copy.deepcopy(section) if name in changed else section for name, section in raw.items()}
    for key, value in own.items():
        if key == "data" and isinstance(value, str):
            raw |= _with_named_data({"data": value}, datasets)
        else:
            raw = _set(raw, (key, value))
    return raw, problems


def _given_twice(settings: JsonObject) -> Iterator[str]:
    """Settings that are given both with a dotted key and below a nested one, of which the later would win."""
    leaves = [(key, leaf) for key, value in settings.items() if key != "data" or isinstance(value, dict) for leaf in _leaves(key, value)]
    for (other, earlier), (key, place) in itertools.combinations(leaves, 2):
        if other != key and (f"{place}.".startswith(f"{earlier}.") or f"{earlier}.".startswith(f"{place}.")):
            yield f"`{max(earlier, place, key=len)}` is given twice, by `{other}` and by `{key}`, and one would be ignored. Remove one."


def _leaves(place: str, value: Json) -> Iterator[str]:
    if not isinstance(value, dict) or not value:
        yield place
        return
    for key, inner in value.items():
        yield from _leaves(f"{place}.{key}", inner)


def _set(raw: JsonObject, setting: tuple[str, Json]) -> JsonObject:
    """Set the value at its dotted key."""
    key, value = setting
    *parents, last = key.split(".")
    place = raw
    for parent in parents:
        if not isinstance(place.get(parent), dict):
            place[parent] = {}
        place = place[parent]
    # a copy, since a later key may change it, and the runs of a sweep share it
    place[last] = copy.deepcopy(value) if parents else merged(place.get(last), copy.deepcopy(value))
    return raw


def _datasets(config: JsonObject) -> tuple[dict[str, JsonObject], list[str]]:
    """The `datasets` by name, and their errors, used or not; missing settings, and what contradicts others, such as the task, are reported
    where a dataset is used."""
    entries = config.get("datasets") or {}
    if not isinstance(entries, dict):
        return {}, [f"datasets: expects names with the settings of a `data` section below them, not {shown(entries)}."]
    found: dict[str, JsonObject] = {}
    problems: list[str] = []
    for name, entry in entries.items():
        if message := bad_name(str(name)):
            problems.append(f"datasets.{name}: {message}")
        elif not isinstance(entry, dict):
            problems.append(f"datasets.{name}: expects the settings of a `data` section, not {shown(entry)}.")
        else:
            found[str(name)] = {"name": str(name)} | entry
            kinds = validated({"data": found[str(name)]}).problems
            wrong = [p for p, kind in kinds.items() if kind not in ("missing", BETWEEN_SECTIONS) and p.startswith("data.")]
            problems += [f"datasets.{name}{p.removeprefix('data')}" for p in wrong]
    return found, problems


def _with_named_data(raw: JsonObject, datasets: dict[str, JsonObject]) -> JsonObject:
    """`data: imdb` picks one of the `datasets`."""
    if isinstance(raw.get("data"), str) and raw["data"] in datasets:
        return raw | {"data": copy.deepcopy(datasets[raw["data"]])}
    return raw


# --- one run


def validated(given: JsonObject, shared: JsonObject | None = None) -> Validated:
    """`shared`: sections that were found right in others."""
    shared = shared or {}
    problems = dict.fromkeys(_conflicting_alternatives(given), "value_error")
    raw, wrong = given, set[str]()
    for _ in range(ROUNDS):
        try:
            settings = Settings.model_validate(raw | shared, context=CONTRADICTIONS_LATER)
            break
        except ValidationError as error:
            if raw is given:
                raw = copy.deepcopy(given)
            found = errors_in(error)
            for item in found:
                path = ".".join(map(str, item["loc"]))
                if not follows(path, wrong):
                    problems[problem(item)] = item["type"]
            for item in found:
                wrong |= {".".join(map(str, item["loc"])), *_leave_out(raw, item)}
    else:
        return Validated(None, problems, wrong)
    for path, text in ((path, text) for path, section in sections_in(settings, without=shared) for text in section.contradictions()):
        if not follows(path, wrong) and not mentions(text, wrong):
            problems[f"{path}: {text}." if path else f"{text}."] = CONTRADICTION if path else BETWEEN_SECTIONS
            wrong |= {path} if path.count(".") else set()  # the rest of the section may be right
    return Validated(settings, problems, wrong)


def follows(path: str, wrong: set[str]) -> bool:
    """Whether a place is known to be wrong, or is below one that is."""
    return any(path == place or path.startswith(f"{place}.") for place in wrong)


def mentions(text: str, wrong: set[str]) -> bool:
    """Whether a message mentions a setting that is known to be wrong."""
    words = {word for path in wrong for word in _words(path)}
    return not words.isdisjoint(re.findall(r"\w+", text))


def _leave_out(raw: JsonObject, item: ErrorDetails) -> set[str]:
    """Remove an invalid value, or the nearest section that exists, so that the default applies; returns the places that this affects."""
    place, last = raw, None
    for key in item["loc"]:
        if not isinstance(place, dict) or key not in place:
            break
        last = (place, key)
        place = place[key]
    if last is None or (last[0] is raw and last[1] == "data"):
        raw["data"] = copy.deepcopy(STAND_IN)
        return {"data"}
    del last[0][last[1]]
    return set()


def _words(path: str) -> set[str]:
    """The names under which a message may mention a wrong setting: its own, and the one that was probably meant."""
    *parents, name = path.split(".")
    return {name} | set(near(name, fields_at(tuple(parents)))[:1])
