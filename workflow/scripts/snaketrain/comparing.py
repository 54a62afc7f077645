"""Puts finished runs side by side: one row each, what differs between them, and how far their differences can be trusted."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pandas as pd

from snaketrain.curves import curves, seconds_training
from snaketrain.journal import read_events

SCORES = ("accuracy", "macro_f1", "loss")
# these say nothing that the source beside them does not
BESIDE_THE_POINT = (".sha256", ".hub_type")


def read_run(folder: Path) -> dict[str, Any]:
    """All that is compared of one run, from its files."""
    folder = Path(folder)
    info = _read(folder / "training/run.json")
    events, _ = read_events(folder / "training/journal.jsonl")
    return {
        "run": info["run"],
        "settings": {key: json.loads(value) for key, _, value in (item.partition("=") for item in info["settings"])},
        "data": info.get("data") or {},
        "events": events,
        "curves": curves(events),
        "selection": _read(folder / "selection/selection.json"),
        "dev": _read(folder / "evaluation/dev_results.json"),
        "test": _read(folder / "evaluation/test_results.json"),
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: cannot be read ({error}). Run the stage that writes it again.") from None


def row(run: dict[str, Any]) -> dict[str, Any]:
    """One run as one line of the table: its settings, then its results."""
    selection, winner = run["selection"], run["selection"]["winner"]
    line: dict[str, Any] = {"run": run["run"], **run["settings"]}
    line |= {"selected_by": selection["metric"], "mode": selection["mode"], "selected_step": winner["step"]}
    line["selected_value"] = winner["metrics"].get(selection["metric"])
    for split in ("dev", "test"):
        results = run[split]
        line[f"{split}_examples"] = results.get("examples")
        line |= {f"{split}_{name}": results.get(name) for name in SCORES}
        line[f"{split}_low"], line[f"{split}_high"] = results.get("interval") or (None, None)
        line[f"{split}_majority"] = results.get("majority_accuracy")
    speeds = [value for _, value in run["curves"].get("train/examples_per_second", [])]
    memory = [event["peak_memory_mb"] for event in run["events"] if event.get("peak_memory_mb") is not None]
    line["examples_per_second"] = statistics.median(speeds) if speeds else None
    line["peak_memory_mb"] = max(memory, default=None)
    line["minutes"] = seconds_training(run["events"]) / 60
    return line


def ranked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Best first, by the metric that chose the checkpoints; by accuracy where runs were chosen by different ones."""
    one_metric = len({(r["selected_by"], r["mode"]) for r in rows}) == 1
    value, sign = ("selected_value", -1 if rows[0]["mode"] == "max" else 1) if one_metric else ("dev_accuracy", -1)
    return sorted(rows, key=lambda r: (sign * r[value], r["run"]) if is_number(r[value]) else (math.inf, r["run"]))


def table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """All rows; of type object, since pandas would turn a whole column of integers to floats for one missing value."""
    columns = list(dict.fromkeys(key for line in rows for key in line))
    cells = [[json.dumps(v, ensure_ascii=False) if isinstance(v, dict | list) else v for v in map(line.get, columns)] for line in rows]
    return pd.DataFrame(cells, columns=columns, dtype=object)


def differing_settings(runs: list[dict[str, Any]]) -> list[str]:
    """Names of the settings in which the runs differ; one that is missing counts as one that is null or empty."""
    names = dict.fromkeys(name for run in runs for name in run["settings"])
    return [
        name
        for name in names
        if not name.endswith(BESIDE_THE_POINT) and len({json.dumps(run["settings"].get(name) or _nothing(run, name)) for run in runs}) > 1
    ]


def _nothing(run: dict[str, Any], name: str) -> Any:
    value = run["settings"].get(name)
    return value if isinstance(value, bool | int | float) else None


def seed_groups(runs: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs that differ in nothing but `train.seed`, with mean and standard deviation; single runs have no deviation."""
    groups: dict[str, list[dict[str, Any]]] = {}
    settings = {run["run"]: (run["settings"], run["data"].get("content")) for run in runs}
    for line in rows:
        rest, data = settings[line["run"]]
        key = json.dumps([{k: v for k, v in rest.items() if k != "train.seed"}, data], sort_keys=True)
        groups.setdefault(key, []).append(line)
    return [_group(members) for members in groups.values()]


def _group(members: list[dict[str, Any]]) -> dict[str, Any]:
    group: dict[str, Any] = {"name": group_name([m["run"] for m in members]), "runs": [m["run"] for m in members], "members": members}
    for name in ("selected_value", *(f"{split}_{score}" for split in ("dev", "test") for score in SCORES)):
        values = [m[name] for m in members if is_number(m[name])]
        group[name] = statistics.fmean(values) if values else None
        group[f"{name}_deviation"] = statistics.stdev(values) if len(values) > 1 else None
    return group | {key: members[0][key] for key in ("selected_by", "mode")}


def group_name(names: list[str]) -> str:
    """`rate-1e-4-seed=0` and `rate-1e-4-seed=1` together are `rate-1e-4`."""
    if len(names) == 1:
        return names[0]
    common = [parts[0] for parts in zip(*(name.split("-") for name in names), strict=False) if len(set(parts)) == 1]
    return "-".join(common) or ", ".join(names)


def verdict(groups: list[dict[str, Any]]) -> str:
    """Whether the best is better than the next by more than chance explains, in plain words."""
    if len(groups) < 2:
        return "There is one configuration only: nothing to compare it with."
    best, following = ranked([{**group, "run": group["name"]} for group in groups])[:2]
    split = "test" if all(is_number(g["test_accuracy"]) for g in (best, following)) else "dev"
    ours, theirs = best[f"{split}_accuracy"], following[f"{split}_accuracy"]
    if not (is_number(ours) and is_number(theirs)):
        return f"{best['name']} is best on the development set; without accuracies it cannot be said by how much."
    margin, source = _margin(best, following, split)
    gap = ours - theirs
    figures = f"{split} accuracy {ours:.3f} against {theirs:.3f}"
    if gap > margin:
        return f"{best['name']} is better than {following['name']}: {figures}. The gap of {gap:.3f} is larger than {source}, {margin:.3f}."
    chance = "" if gap < 0 else f"The gap of {gap:.3f} is within {source}, {margin:.3f}: it may be chance. "
    if gap < 0:
        chance = f"It is behind by {-gap:.3f} there ({source}: {margin:.3f}). "
    return (
        f"{best['name']} was ahead on the development set, but is not clearly better than {following['name']}: {figures}. {chance}"
        "More seeds or more examples would tell."
    )


def _margin(best: dict[str, Any], following: dict[str, Any], split: str) -> tuple[float, str]:
    """The larger of what few examples and what other seeds may do to a gap, and what it is called."""
    halves = [statistics.fmean((m[f"{split}_high"] - m[f"{split}_low"]) / 2 for m in g["members"]) for g in (best, following)]
    deviations = [g[f"{split}_accuracy_deviation"] for g in (best, following)]
    known = [d for d in deviations if d is not None]
    # a single run's spread is unknown: taken to be the other's
    spread = math.hypot(*(max(known) if d is None else d for d in deviations)) if known else 0.0
    interval = math.hypot(*halves)
    return (spread, "the spread over seeds") if spread > interval else (interval, "the uncertainty of both intervals")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
