"""The runs of a configuration: `runs` and `sweeps` expanded into what each run changes."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from snaketrain.config.errors import bad_name, shown
from snaketrain.config.schema import Settings
from snaketrain.config.schema.of_extras import hooks
from snaketrain.runtime.strict_json import Json, JsonObject

MOST_RUNS = 10_000


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
    for sweep, axes in (entries["sweeps"] or {}).items():
        found = _sweep_errors(str(sweep), axes)
        if not found and len(changes) + math.prod(map(len, axes.values())) > MOST_RUNS:
            found = [_too_many(str(sweep), axes, len(changes))]
            axes = {key: values[:1] for key, values in axes.items()}  # so that other errors show as well
            changes += _points(str(sweep), axes)
        elif not found:
            changes += _points(str(sweep), axes)
        problems += found
    for changes_of in hooks("top_level", "changes"):
        changes += changes_of(config)
    if not changes and not problems:
        changes = [Change("default", "runs.default", {})]
    named, more = _by_name(changes)
    return named, problems + more


def _too_many(sweep: str, axes: dict[str, list[Json]], others: int) -> str:
    counts = [len(values) for values in axes.values()]
    product = f" ({' x '.join(map(str, counts))})" if len(counts) > 1 else ""
    beside = f" beside {others} other runs" if others else ""
    return (
        f"sweeps.{sweep}: makes {math.prod(counts):,} runs{product}{beside}, and more than {MOST_RUNS:,} are treated as an error. "
        "Give fewer values."
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


def runs_of_sweep(sweep: str, changes: Mapping[str, Change]) -> tuple[str, ...]:
    return tuple(sorted(run for run, change in changes.items() if change.where == f"sweeps.{sweep}"))


def of_dev_sets(runs: Collection[Settings]) -> dict[str, set[str]]:
    """The values of each setting that changes which examples are in the development set."""
    return {
        "data.train": {str(run.data.train if run.data.dev is None else None) for run in runs},
        "data.where": {str(run.data.where) for run in runs},
        "data.test_fraction": {str(run.data.test_fraction if run.data.dev is None and run.data.test is None else None) for run in runs},
        "data.split_seed": {str(run.data.split_seed if run.data.dev is None or run.data.limit_dev else None) for run in runs},
        "data.dev_fraction": {str(run.data.dev_fraction if run.data.dev is None else None) for run in runs},
        "data.limit_dev": {str(run.data.limit_dev) for run in runs},
        "data.dev": {str(run.data.dev) for run in runs},
    }
