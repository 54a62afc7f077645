"""From the configuration file to the settings of every run, or to a list of all that is wrong with it.

Runs start from the common sections and change some of them; a sweep makes one run of each combination of its values.
"""

import copy
import difflib
import functools
import itertools
import json
import re
from typing import Any

from pydantic import TypeAdapter, ValidationError

from snaketrain.settings import Name, Section, Settings

SECTIONS = tuple(Settings.model_fields)
TOP_LEVEL = (*SECTIONS, "datasets", "runs", "sweeps")
CORRECTABLE = ("missing", "value_error")  # what depends on several settings, so that a run can make it right

PLAINER = {
    "List should have": "a list of",
    "String should have": "a text of",
    " after validation": "",
    "greater than": "a number greater than",
    "less than": "a number less than",
}


class BadConfiguration(Exception):
    """All problems of a configuration, each with its path, what is wrong and what to do."""

    def __init__(self, problems: list[str]):
        self.problems = list(dict.fromkeys(problems))
        several = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__(f"The configuration has {several}; nothing was started.\n" + "\n".join(f"  - {p}" for p in self.problems))


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
        return None, {_problem(item): item["type"] for item in error.errors()}


def strings(name: str, section: Section | None) -> list[str]:
    """A section as one `name.key=json` string per setting: what Snakemake compares, stages receive and MLflow records."""
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in flatten(name, section.model_dump(mode="json"))]


def flatten(name: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value and all(key.isidentifier() for key in value):
        return [pair for key, inner in value.items() for pair in flatten(f"{name}.{key}", inner)]
    return [(name, value)]


def from_strings(items: list[str]) -> dict[str, Any]:
    """The nested sections again, from their `name.key=json` strings."""
    nested: dict[str, Any] = {}
    for item in items:
        key, _, value = item.partition("=")
        *parents, last = key.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = json.loads(value)
    return nested


def nearest(key: Any, known: Any) -> str:
    near = difflib.get_close_matches(str(key), list(known), n=1)
    return f". Did you mean '{near[0]}'?" if near else "."


# --- runs and sweeps


def _changes_by_run(config: dict[str, Any]) -> tuple[dict[str, tuple[str, dict]], list[str]]:
    """For every run, where it stands in the file and what it changes; and what is wrong with their names."""
    found: dict[str, tuple[str, dict]] = {}
    problems: list[str] = []
    runs, sweeps = config.get("runs") or {}, config.get("sweeps") or {}
    for kind, entries in (("runs", runs), ("sweeps", sweeps)):
        if not isinstance(entries, dict):
            problems.append(f"{kind}: expects names with their settings below them, not {_shown(entries)}.")
    runs, sweeps = (entries if isinstance(entries, dict) else {} for entries in (runs, sweeps))
    points = [(str(name), f"runs.{name}", change or {}) for name, change in runs.items()]
    for sweep, axes in sweeps.items():
        points += _points(str(sweep), axes, problems)
    if not points and not problems:
        points = [("default", "runs.default", {})]
    for name, where, change in points:
        if message := _bad_name(name):
            problems.append(f"{where}: {message}")
        elif not isinstance(change, dict):
            problems.append(f"{where}: expects settings such as `train.seed: 1`, not {_shown(change)}.")
        elif name.lower() in (known.lower() for known in found):
            # file systems and eyes do not tell Wide from wide
            problems.append(f"{where}: there is already a run named {name!r}; names must differ in more than upper and lower case.")
        else:
            found[name] = (where, change)
    return found, problems


def _points(sweep: str, axes: Any, problems: list[str]) -> list[tuple[str, str, dict]]:
    where = f"sweeps.{sweep}"
    if message := _bad_name(sweep):
        problems.append(f"{where}: {message}")
    elif not isinstance(axes, dict) or not axes:
        problems.append(f"{where}: expects settings with lists of values, such as `train.seed: [0, 1, 2]`, not {_shown(axes)}.")
    elif bad := [key for key, values in axes.items() if not isinstance(values, list) or not values]:
        problems += [f"{where}.{key}: expects a list of values, not {_shown(axes[key])}." for key in bad]
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


@functools.cache
def _names() -> TypeAdapter:
    return TypeAdapter(Name)  # making it takes longer than all names of a large sweep


def _bad_name(name: str) -> str | None:
    try:
        _names().validate_python(name)
    except ValidationError:
        return f"{name!r} cannot be a name: it names a folder, so use letters, digits and . _ - = + only, beginning with a letter or digit."
    return None


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
        return {}, [f"datasets: expects names with the settings of a `data` section below them, not {_shown(entries)}."]
    found, problems = {}, []
    for name, entry in entries.items():
        if message := _bad_name(str(name)):
            problems.append(f"datasets.{name}: {message}")
        elif not isinstance(entry, dict):
            problems.append(f"datasets.{name}: expects the settings of a `data` section, not {_shown(entry)}.")
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


# --- telling what is wrong


def _problem(item: dict) -> str:
    path = ".".join(map(str, item["loc"]))
    given = item["input"]
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        known = _fields_at(item["loc"][:-1])
        return f"{path}: no such setting{nearest(item['loc'][-1], known)} Known here: {', '.join(known)}."
    if kind == "missing":
        return f"{path}: is missing, and has no default. See config/README.md for what it means."
    if kind == "value_error":
        return f"{path}: {context['error']}." if path else f"{context['error']}."
    if kind == "literal_error":
        known = re.findall(r"'(.*?)'", context["expected"])
        return f"{path}: {_shown(given)} is not one of {context['expected']}{nearest(given, known)}"
    if kind == "model_type" and path == "data" and isinstance(given, str):
        return f"data: there is no {given!r} among the `datasets`. Name one of them, or write the section here."
    if kind in ("model_type", "dict_type"):
        known = _fields_at(item["loc"])
        below = f"its settings ({', '.join(known)})" if known else "names with their values"
        return f"{path}: expects {below} below it, not {_shown(given)}."
    if kind == "string_pattern_mismatch":
        return f"{path}: {_bad_name(str(given))}"
    expected = item["msg"].removeprefix("Input should be ")
    for theirs, ours in PLAINER.items():
        expected = expected.replace(theirs, ours)
    return f"{path}: expects {expected}, not {_shown(given)}."


def _fields_at(location: tuple) -> list[str]:
    """The settings known at a place of the configuration."""
    model: Any = Settings
    for part in location:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, Section)), None)
        if model is None:
            return []
    return list(model.model_fields)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
