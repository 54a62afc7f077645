"""From the configuration file to the settings of every run, or to a list of all that is wrong with it.

Runs start from the common sections and change some of them; a sweep makes one run of each combination of its values.
"""

import copy
import functools
import itertools
import json
import re
from typing import Any

from pydantic import ValidationError

from snaketrain.credentials import conceal, reveal
from snaketrain.mistakes import BadConfiguration, bad_name, nearest, problem, shown
from snaketrain.settings import Section, Settings

SECTIONS = tuple(Settings.model_fields)
TOP_LEVEL = (*SECTIONS, "datasets", "runs", "sweeps")
CORRECTABLE = ("missing", "value_error")  # what depends on several settings, so that a run can make it right


def read_runs(config: dict[str, Any]) -> dict[str, Settings]:
    """The settings of every run by its name."""
    problems = [f"{key}: no such section{nearest(key, TOP_LEVEL)} Known: {', '.join(TOP_LEVEL)}." for key in config if key not in TOP_LEVEL]
    datasets, mistakes = _datasets(config)
    problems += mistakes
    known = {f"data{problem.partition(name)[2]}" for name in datasets for problem in mistakes if problem.startswith(f"datasets.{name}.")}
    changes, found = _changes_by_run(config)
    problems += found
    common = {key: config[key] for key in SECTIONS if config.get(key) is not None}
    common = _with_named_data(common, datasets)
    runs: dict[str, Settings] = {}
    wrong: dict[str, dict[str, str]] = {}
    for run, (where, change) in changes.items():
        raw, found = _changed(common, change, where, datasets)
        problems += found
        runs[run], wrong[run] = _validated(raw)
    # a mistake in the common sections is told once, not for every run; but what a run corrects or completes there is none
    everywhere = set.intersection(*map(set, wrong.values())) if wrong else None
    told = [p for p, kind in _validated(common)[1].items() if kind not in CORRECTABLE or everywhere is None or p in everywhere]
    problems += [p for p in told if p not in known]
    problems += [f"{changes[run][0]}.{p}" for run in wrong for p in wrong[run] if p not in told and p not in known]
    if problems:
        raise BadConfiguration(problems)
    return runs


def _validated(raw: dict) -> tuple[Settings | None, dict[str, str]]:
    """The settings, or what is wrong with them: each problem with its kind."""
    try:
        return Settings.model_validate(raw), {}
    except ValidationError as error:
        return None, {problem(item): item["type"] for item in error.errors()}


def strings(name: str, section: Section | None) -> list[str]:
    """A section as one `name.key=json` string per setting: what Snakemake compares, stages receive and MLflow records; without passwords."""
    return _strings(name, json.dumps(section.model_dump(mode="json")))


@functools.cache  # the points of a sweep differ in one section, if at all
def _strings(name: str, section: str) -> list[str]:
    return [conceal(key, value) for key, value in flatten(name, json.loads(section))]


def flatten(name: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value and all(key.isidentifier() for key in value):
        return [pair for key, inner in value.items() for pair in flatten(f"{name}.{key}", inner)]
    return [(name, value)]


def from_strings(items: list[str]) -> dict[str, Any]:
    """The nested sections again, from their `name.key=json` strings."""
    nested: dict[str, Any] = {}
    for item in items:
        key, _, value = reveal(item).partition("=")
        *parents, last = key.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = json.loads(value)
    return nested


def _changes_by_run(config: dict[str, Any]) -> tuple[dict[str, tuple[str, dict]], list[str]]:
    """For every run, where it stands in the file and what it changes; and what is wrong with their names."""
    found: dict[str, tuple[str, dict]] = {}
    problems: list[str] = []
    runs, sweeps = config.get("runs") or {}, config.get("sweeps") or {}
    for kind, entries in (("runs", runs), ("sweeps", sweeps)):
        if not isinstance(entries, dict):
            problems.append(f"{kind}: expects names with their settings below them, not {shown(entries)}.")
    runs, sweeps = (entries if isinstance(entries, dict) else {} for entries in (runs, sweeps))
    points = [(str(name), f"runs.{name}", change or {}) for name, change in runs.items()]
    for sweep, axes in sweeps.items():
        points += _points(str(sweep), axes, problems)
    if not points and not problems:
        points = [("default", "runs.default", {})]
    for name, where, change in points:
        if message := bad_name(name):
            problems.append(f"{where}: {message}")
        elif not isinstance(change, dict):
            problems.append(f"{where}: expects settings such as `train.seed: 1`, not {shown(change)}.")
        elif name.lower() in (known.lower() for known in found):
            # file systems and eyes do not tell Wide from wide
            problems.append(f"{where}: there is already a run named {name!r}; names must differ in more than upper and lower case.")
        else:
            found[name] = (where, change)
    return found, problems


def _points(sweep: str, axes: Any, problems: list[str]) -> list[tuple[str, str, dict]]:
    where = f"sweeps.{sweep}"
    if message := bad_name(sweep):
        problems.append(f"{where}: {message}")
    elif not isinstance(axes, dict) or not axes:
        problems.append(f"{where}: expects settings with lists of values, such as `train.seed: [0, 1, 2]`, not {shown(axes)}.")
    elif bad := [key for key, values in axes.items() if not isinstance(values, list) or not values]:
        problems += [f"{where}.{key}: expects a list of values, not {shown(axes[key])}." for key in bad]
    else:
        return [
            ("-".join([sweep, *(_label(key, values, value) for (key, values), value in zip(axes.items(), point, strict=True))]),
             where, dict(zip(axes, point, strict=True)))
            for point in itertools.product(*axes.values())
        ]  # fmt: skip
    return []


def _label(key: str, values: list, value: Any) -> str:
    text = str(value)
    if not re.fullmatch(r"[A-Za-z0-9._+-]{1,30}", text):
        text = str(values.index(value))
    return f"{str(key).rpartition('.')[2]}={text}"


def _changed(common: dict, change: dict, where: str, datasets: dict) -> tuple[dict, list[str]]:
    """The common sections with a run's changes: a dotted key replaces what stands there, nested ones are merged in."""
    raw, problems = copy.deepcopy(common), []
    for key, value in change.items():
        parents, _, last = str(key).rpartition(".")
        place = raw
        if str(key).split(".")[0] not in SECTIONS:
            problems.append(f"{where}.{key}: no such setting{nearest(str(key).split('.')[0], SECTIONS)}")
            continue
        if key == "data" and isinstance(value, str):
            raw |= _with_named_data({"data": value}, datasets)
            continue
        for parent in parents.split(".") if parents else ():
            if not isinstance(place.get(parent), dict):
                place[parent] = {}
            place = place[parent]
        if isinstance(value, dict) and isinstance(place.get(last), dict) and not parents:
            value = _merged(place[last], value)
        place[last] = value
    return raw, problems


def _merged(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {key: _merged(old.get(key), value) for key, value in new.items()}


def _datasets(config: dict) -> tuple[dict[str, dict], list[str]]:
    """The `datasets` by name, and what is wrong with them, used or not; what is missing shows where one is used."""
    entries = config.get("datasets") or {}
    if not isinstance(entries, dict):
        return {}, [f"datasets: expects names with the settings of a `data` section below them, not {shown(entries)}."]
    found, problems = {}, []
    for name, entry in entries.items():
        if message := bad_name(str(name)):
            problems.append(f"datasets.{name}: {message}")
        elif not isinstance(entry, dict):
            problems.append(f"datasets.{name}: expects the settings of a `data` section, not {shown(entry)}.")
        else:
            found[str(name)] = {"name": str(name)} | entry
            wrong = _validated({"data": found[str(name)]})[1]
            wrong = [p for p, kind in wrong.items() if kind != "missing" and p.startswith("data.")]
            problems += [f"datasets.{name}{p.removeprefix('data')}" for p in wrong]
    return found, problems


def _with_named_data(raw: dict, datasets: dict[str, dict]) -> dict:
    """`data: imdb` picks one of the `datasets`."""
    if isinstance(raw.get("data"), str) and raw["data"] in datasets:
        return raw | {"data": copy.deepcopy(datasets[raw["data"]])}
    return raw
