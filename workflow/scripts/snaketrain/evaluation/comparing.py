"""Compares finished runs of any task: a row for each, and groups of runs that differ only in the seed."""

import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import pandas as pd

from snaketrain.evaluation.journals import Curves, curves, seconds_training, standing, warnings_of
from snaketrain.runtime.journal import Event, read_events
from snaketrain.runtime.manifests import Manifest, digest, read_checked, read_manifest, read_result
from snaketrain.runtime.provenance import one_after_the_other
from snaketrain.runtime.run_folder import damaged_log
from snaketrain.runtime.stages import by_name, versions_of
from snaketrain.runtime.strict_json import Json, JsonObject, is_number, rounded
from snaketrain.tasks.metric_names import rank_key

Row = JsonObject  # of the table: settings and results of a run
SeedGroup = JsonObject  # runs that differ only in the seed, with means and standard deviations


class FinishedRun(TypedDict):
    run: str
    settings: JsonObject  # by full name, such as `train.seed`
    data: JsonObject
    events: list[Event]
    curves: Curves
    selection: JsonObject
    dev: JsonObject
    test: JsonObject
    sets: dict[str, JsonObject]  # the results on each further set
    checkpoints: dict[str, list[JsonObject]]  # by set: the metrics of all kept checkpoints, if they were asked for
    mixed: list[JsonObject]  # changes of code or settings in the middle of the training
    versions: dict[str, str]  # of packages
    origin: dict[str, str]  # when, on what and with which code it was trained, in words


def read_run(folder: Path, sets: Sequence[str] = ()) -> FinishedRun:
    folder = Path(folder)
    info = _read(folder / "training/run.json")
    training, selection, evaluation = (read_manifest(folder / stage / "manifest.json") for stage in ("training", "selection", "evaluation"))
    evaluated = {name: read_manifest(folder / f"sets/{name}/manifest.json") for name in sets}
    if info["identity"] != training.identity or info["run"] != training.facts["run"]:
        raise SystemExit(
            f"{folder}/training/run.json: is of another training. Start snakemake again: it reruns train_model, which writes it."
        )
    events = events_of(training)
    return {
        "run": info["run"],
        "settings": by_name(info["settings"]) | evaluation.facts.get("test", {}),
        "data": info.get("data") or {},
        "events": events,
        "curves": curves(events),
        "selection": read_result(selection, "selection.json"),
        "dev": read_result(evaluation, "dev_results.json"),
        "test": read_result(evaluation, "test_results.json"),
        "sets": {name: read_result(made, f"{name}_results.json") for name, made in evaluated.items()},
        "checkpoints": {
            name: read_result(made, "checkpoints.json")["checkpoints"]
            for name, made in evaluated.items()
            if "checkpoints.json" in made.files
        },
        "mixed": info.get("mixed") or [],
        "versions": one_after_the_other(map(versions_of, (training, selection, evaluation))),
        "origin": origin(info, training),
    }


def origin(info: JsonObject, training: Manifest) -> dict[str, str]:
    git, about, data = (info.get(key) or {} for key in ("git", "environment", "data"))
    changed = " and uncommitted changes" if git.get("dirty") else ""
    processes = f"{about.get('processes', '?')} × {about.get('device', '?')}, {about.get('precision', '?')}"
    return {
        "trained": time.strftime("%Y-%m-%d %H:%M", time.localtime(training.finished)),
        "on": f"{processes}, torch {about.get('torch', '?')}",
        "commit": f"{git['commit'][:10]}{changed}" if git.get("commit") else "none",
        "data": f"{data.get('name', '')} {data.get('content', '')}",
    }


def events_of(training: Manifest) -> list[Event]:
    """The journal of a finished training, as far as its manifest vouches for it."""
    if message := damaged_log(training):
        raise SystemExit(message)
    size, _ = training.logs["journal.jsonl"]
    return read_events(training.folder / "journal.jsonl", at_most_bytes=size - 1)[0]  # and the rest of the line


def _read(path: Path) -> JsonObject:
    try:
        return read_checked(path)
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: cannot be read ({error}). Run the stage that writes it again.") from None


def results_of(run: FinishedRun) -> dict[str, JsonObject]:
    """Results by the prefix of their columns in the table, which is also that of their metrics in MLflow."""
    return {"dev": run["dev"], "test": run["test"]} | {f"test.{name}": results for name, results in run["sets"].items()}


def row(run: FinishedRun) -> Row:
    """The settings of a run, then its results."""
    selection, winner = run["selection"], run["selection"]["winner"]
    line: Row = {"run": run["run"], "status": "finished", **run["settings"]}
    line |= {"selected_by": selection["metric"], "mode": selection["mode"], "selected_step": winner["step"]}
    deciding = run["dev"]["metrics"] if selection.get("averaged") else winner["metrics"]  # an average has metrics of its own
    line |= {"selected_value": deciding.get(selection["metric"]), "data": run["data"].get("name", "")}
    for split, results in results_of(run).items():
        line[f"{split}_examples_digest"] = results.get("examples_digest") or ""  # none in those of an earlier version
        line[f"{split}_examples"] = results.get("examples")
        line |= {f"{split}_{name}": value for name, value in results["metrics"].items()}
        line[f"{split}_low"], line[f"{split}_high"] = results.get("interval") or (None, None)  # of the accuracy
        line[f"{split}_baseline"] = baseline(results["baselines"], selection["metric"], selection["mode"])
    speeds = [value for _, value in run["curves"].get("train/examples_per_second", [])]
    memory = [event["peak_memory_mb"] for event in run["events"] if event.get("peak_memory_mb") is not None]
    line["examples_per_second"] = statistics.median(speeds) if speeds else None
    line["peak_memory_mb"] = max(memory, default=None)
    line["minutes"] = seconds_training(run["events"]) / 60
    line["processes"] = next((event["processes"] for event in reversed(run["events"]) if event.get("processes")), None)  # at last
    reused = next((event for event in run["events"] if event.get("event") == "reused"), {})
    line["took_over"], line["steps_taken_over"] = reused.get("message"), reused.get("step", 0)
    line["steps"] = max((step for step, _ in run["curves"].get("train/loss", [])), default=0)
    line["watt_hours"] = watt_hours(run["events"])
    line["warnings"] = warnings_of(standing(run["events"])) or None
    line["mixed"] = "; ".join(f"{', '.join(change['changed'])} changed after step {change['step']}" for change in run["mixed"]) or None
    return line


LONGEST_SAMPLE = 60.0  # seconds; over a longer pause nothing is known of the power


def watt_hours(events: Iterable[Event]) -> float | None:
    """What the GPUs of the first process's machine took; None where the machine does not tell it."""
    total, before, known = 0.0, math.inf, False
    for event in events:
        if event.get("event") == "system" and event.get("attempt", 1) > 0:  # not of steps that were taken over
            watts = [value for name, value in event["metrics"].items() if name.startswith("gpu_") and name.endswith("_watts")]
            known |= bool(watts)
            if 0 < event["time"] - before < LONGEST_SAMPLE:
                total += sum(watts) * (event["time"] - before) / 3600
            before = event["time"]
    return total if known else None


def cost(rows: list[Row]) -> str:
    """Of all runs together: `2.5 process hours, 310 Wh; 40 of 120 steps were taken over from other runs`."""
    hours = sum(line["minutes"] * (line["processes"] or 1) for line in rows) / 60
    energy = [line["watt_hours"] for line in rows if line["watt_hours"] is not None]
    taken, steps = sum(line["steps_taken_over"] for line in rows), sum(line["steps"] for line in rows)
    saved = f"; {taken:,} of {steps:,} steps were taken over from other runs" if taken else ""
    return f"{rounded(hours, 2)} process hours{f', {rounded(sum(energy), 0)} Wh of GPUs' if energy else ''}{saved}"


def row_without_result(unfinished: tuple[str, str]) -> Row:
    """The row of a run that did not finish, from its name and a reason such as `train_model failed: <message in its log>`."""
    run, why = unfinished
    status, _, error = why.partition(": ")
    return {"run": run, "status": status, "error": error}


def baseline(baselines: dict[str, JsonObject], metric: str, mode: str) -> float | None:
    """The metric of the best constant answer."""
    values = [each[metric] for each in baselines.values() if is_number(each.get(metric))]
    return (max if mode == "max" else min)(values) if values else None


def chosen_by(rows: list[Row]) -> list[str]:
    """The metrics that chose the checkpoints; usually one."""
    return list(dict.fromkeys(line["selected_by"] for line in rows))


def metrics_of(runs: list[FinishedRun]) -> list[str]:
    """The metrics of all runs: first those that checkpoints were selected by, last the loss."""
    return _in_order(runs, (name for run in runs for split in ("dev", "test") for name in run[split]["metrics"]))


def sets_of(runs: list[FinishedRun]) -> dict[str, list[str]]:
    """The metrics on each further set, in the same order."""
    found = dict.fromkeys(name for run in runs for name in run["sets"])
    return {
        name: _in_order(runs, (metric for run in runs if name in run["sets"] for metric in run["sets"][name]["metrics"])) for name in found
    }


def _in_order(runs: list[FinishedRun], names: Iterable[str]) -> list[str]:
    chosen = {run["selection"]["metric"] for run in runs}
    return sorted(dict.fromkeys(names), key=lambda name: (name not in chosen, name == "loss"))


def on_sets(sets: dict[str, list[str]], chosen: list[str]) -> list[tuple[str, str]]:
    """Where there is room for one metric of each set: the one that checkpoints were selected by, or its first; more if several selected."""
    return [(name, metric) for name, metrics in sets.items() for metric in [each for each in metrics if each in chosen] or metrics[:1]]


def checkpoint_rows(runs: list[FinishedRun]) -> list[Row]:
    """A row for each kept checkpoint on each set on which all checkpoints were evaluated."""
    return [
        {"run": run["run"], "set": name, "step": each["step"], "selected": each["step"] in selected_steps(run["selection"])}
        | each["metrics"]
        for run in runs
        for name, found in run["checkpoints"].items()
        for each in found
    ]


def selected_steps(selection: JsonObject) -> list[int]:
    """The step of the selected checkpoint, or the steps of the checkpoints whose weights are averaged."""
    return selection.get("averaged") or [selection["winner"]["step"]]


def comparable(lines: list[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """Rows or groups that can be compared, by their data, metric and mode.

    The metric is the one that checkpoints were selected by, or the accuracy if these differ on the same data and all runs have it.
    """
    found: dict[tuple[str, str, str], list[Row]] = {}
    for data, here in by_examples(lines).items():
        chosen = sorted({(line["selected_by"], line["mode"]) for line in here})
        if len(chosen) > 1 and all(is_number(line.get("dev_accuracy")) for line in here):
            found[data, "accuracy", "max"] = here
        else:
            found |= {(data, *by): [line for line in here if (line["selected_by"], line["mode"]) == by] for by in chosen}
    return found


def by_examples(lines: list[Row]) -> dict[str, list[Row]]:
    """Rows or groups that were measured on the same development examples, by the name of the data, and a part of their digest where several have it."""
    found: dict[tuple[str, str], list[Row]] = {}
    for line in lines:
        found.setdefault((line["data"], line.get("dev_examples_digest", "")), []).append(line)
    names = Counter(data for data, _ in found)
    return {
        f"{data} ({digest[:6] or 'unknown examples'})" if names[data] > 1 else data: found[data, digest] for data, digest in sorted(found)
    }


def ranked(rows: list[Row]) -> list[Row]:
    """Best first, by the metric that checkpoints were selected by; runs that cannot be compared are in groups one after the other, mixed ones last."""
    found = [line for (_, metric, mode), here in comparable(rows).items() for line in best_first(here, metric, mode)]
    return sorted(found, key=lambda line: bool(line.get("mixed")))


def best_first(lines: list[Row], metric: str, mode: str) -> list[Row]:
    def key(line: Row) -> tuple[float, float, str]:
        value, loss = dev_value(line, metric), line.get("dev_loss")
        return *rank_key(value if is_number(value) else None, loss if is_number(loss) else None, mode), line["run"]

    return sorted(lines, key=key)


def dev_value(line: Row, metric: str) -> Json:
    """The metric on the development set; if checkpoints were selected by it, that of the selected one."""
    return line["selected_value"] if line["selected_by"] == metric else line[f"dev_{metric}"]


def table(rows: list[Row]) -> pd.DataFrame:
    """With dtype object: pandas would turn a column of integers with a missing value into floats."""
    columns = list(dict.fromkeys(key for line in rows for key in line))
    cells = [[json.dumps(v, ensure_ascii=False) if isinstance(v, dict | list) else v for v in map(line.get, columns)] for line in rows]
    return pd.DataFrame(cells, columns=columns, dtype=object)


def seed_groups(runs: list[FinishedRun], rows: list[Row]) -> list[SeedGroup]:
    """Groups of runs that differ only in `train.seed`, with mean and standard deviation; single runs have no deviation.

    A run of equal settings and seed, on other processes, is the same training again, equal up to rounding: it is no further seed.
    """
    groups: dict[str, list[Row]] = {}
    settings = {run["run"]: (run["settings"], run["data"].get("content")) for run in runs}
    firsts: dict[str, str] = {}
    for line in sorted((line for line in rows if not line.get("mixed")), key=lambda line: str(line["run"])):
        firsts.setdefault(json.dumps([settings[line["run"]], line["selected_by"]], sort_keys=True), line["run"])
    trainings = set(firsts.values())
    for line in rows:
        rest, data = settings[line["run"]]
        alone = None if line["run"] in trainings else line["run"]
        key = json.dumps([without_seed(rest), data, line["selected_by"], alone], sort_keys=True)
        groups.setdefault(digest(key), []).append(line)
    return [
        _group(members) | {"configuration": key, "settings": without_seed(settings[members[0]["run"]][0])}
        for key, members in groups.items()
    ]


def without_seed(settings: JsonObject) -> JsonObject:
    return {name: value for name, value in settings.items() if name != "train.seed"}


def _group(members: list[Row]) -> SeedGroup:
    name = group_name([m["run"] for m in members])
    group: SeedGroup = {"run": name, "runs": [m["run"] for m in members], "members": members}
    for key in dict.fromkeys(key for m in members for key in m if key == "selected_value" or key.startswith(("dev_", "test_", "test."))):
        values = [m[key] for m in members if is_number(m.get(key))]
        group[key] = statistics.fmean(values) if values else None
        group[f"{key}_deviation"] = statistics.stdev(values) if len(values) > 1 else None
    return group | {
        key: members[0][key] for key in ("selected_by", "mode", "data", "dev_examples_digest", "test_examples_digest") if key in members[0]
    }


def group_name(names: list[str]) -> str:
    """`rate-1e-4` for `rate-1e-4-seed=0` and `rate-1e-4-seed=1`."""
    if len(names) == 1:
        return names[0]
    common = [parts[0] for parts in zip(*(name.split("-") for name in names), strict=False) if len(set(parts)) == 1]
    return "-".join(common) or ", ".join(names)


# these add nothing to the source beside them
BESIDE_THE_POINT = (".sha256", ".hub_type")


def differing_settings(runs: Sequence[Mapping[str, object]], left_out: tuple[str, ...] = BESIDE_THE_POINT) -> list[str]:
    """Names of the settings that differ between runs; a missing setting equals a null or empty one. `left_out`: suffixes of names to ignore."""
    names = dict.fromkeys(name for settings in runs for name in settings if not name.endswith(left_out))
    return [name for name in names if len({_text(settings.get(name)) for settings in runs}) > 1]


def _text(value: object) -> str:
    return json.dumps(value if value or isinstance(value, bool | int | float) else None)
