"""What MLflow shows of a run, read from its files: params, tags, roll-ups, notes, the description of the data set; within what it accepts."""

import functools
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from snaketrain.cli import commands
from snaketrain.evaluation.comparing import baseline
from snaketrain.evaluation.journals import warnings_of
from snaketrain.runtime import strict_json
from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.journal import Event
from snaketrain.runtime.manifests import Manifest, digest, read_result
from snaketrain.runtime.stages import by_name
from snaketrain.runtime.strict_json import JsonObject, rounded, spoken, unquoted

# --- What MLflow accepts: names and texts of limited length, here without passwords, and numbers with as many digits as one reads.

LONGEST_PARAM, LONGEST_TAG, LONGEST_KEY = 6000, 8000, 250
EXACT = ("train/loss",)  # the extra `reproduce` compares them bit for bit


def cut(value: object, longest: int) -> str:
    """A text without passwords, cut to a length that MLflow accepts."""
    text = hidden(str(value))
    return text if len(text) <= longest else text[: longest - 6] + " … cut"


def five_digits(name: str, value: float) -> float:
    """A metric to five significant digits; whole numbers are exact."""
    return value if name in EXACT or value.is_integer() else float(f"{value:.5g}")


def allowed(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)[:LONGEST_KEY]


def folder_name(experiment: str) -> str:
    """A folder name for an experiment, whose own name may contain characters that a path must not."""
    plain = re.sub(r"[^A-Za-z0-9._=+-]", "-", experiment).lstrip(".")[:80]
    return plain if plain and plain == experiment else f"{plain}-{digest(experiment)[:8]}"


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


# --- Addresses of MLflow's pages.
#
# MLflow 3.17 opens every experiment in its mode for traces and prompts unless the address says otherwise: no tag of the experiment and no
# option of the server changes that.

MODE = "workflowType=machine_learning"


def run_address(ui: str, experiment_id: str, run_id: str) -> str:
    return f"{ui}/#/experiments/{experiment_id}/runs/{run_id}?{MODE}"


def search_address(experiment_id: str, name: str, value: str) -> str:
    """Of the runs with that value, as descriptions link to it."""
    condition = quote(f"{name} = '{value}'")
    return f"#/experiments/{experiment_id}/runs?searchFilter={condition}&{MODE}"


STATUSES = {"RUNNING": "RUNNING", "FINISHED": "FINISHED", "STOPPED": "KILLED", "FAILED": "FAILED"}
SILENT_SECONDS = 6 * 3600  # a training that writes nothing for this long is taken to be killed
END = "pipeline.end"  # a tag: how the last attempt ended
INTERVAL = "interval"  # a tag: the uncertainty of the accuracy on the test set
TIME = "training/time.json"  # an artifact: what the wall time was spent on
SAMPLES = "training/samples.json"  # an artifact: texts that the model generated in the evaluations of the training
MOST_SAMPLES = 400  # the last ones
REPEATED = ("confidence", "examples", "majority_accuracy")  # stated by the settings, the data's run, and the baseline
LONGEST_REASON = 500
MOST_DIFFERENT = 12  # settings in a description
SETTINGS_OF_DATA = ("max_length", "pad_token_id", "end_token_id")  # among the facts of prepared data
Point = tuple[str, float, float, int]


def read_json(path: Path) -> JsonObject | None:
    """None if the file does not exist yet, or was changed since, as far as it has a checksum, which is told."""
    try:
        text = path.read_text(encoding="utf-8")
        content = strict_json.loads(text)
        if isinstance(content, dict) and "checksum" in content:
            content = strict_json.checked(text, strict_json.loads)
    except OSError:
        return None
    except ValueError as error:
        warn_once(f"{path}: {error}; MLflow is updated without it")
        return None
    return content if isinstance(content, dict) else None


def manifest(path: Path) -> Manifest | None:
    content = read_json(path)
    try:
        return Manifest(**content, path=str(path)) if content and isinstance(content["settings"], dict) else None
    except (KeyError, TypeError):
        return None


def result(made: Manifest, name: str) -> JsonObject | None:
    """A result of a stage; None if it is not what was written, which is told."""
    try:
        return read_result(made, name)
    except SystemExit as error:
        warn_once(f"{error} MLflow is updated without it.")
        return None


@functools.cache  # once, though the follower looks every few seconds
def warn_once(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)


def prepared(run: JsonObject, results: Path) -> Manifest | None:
    """The manifest of the data that a training read, whatever the current folder."""
    path = Path((run.get("data") or {}).get("path") or "missing")
    return manifest(path) or manifest(results / "data" / path.parent.name / "manifest.json")


def params(settings: JsonObject) -> dict[str, str]:
    """Settings as MLflow shows them: text without quotes, everything else as JSON. Those that are null or empty are only in run.json."""
    given = {key: value for key, value in by_name(settings).items() if value not in (None, "", [], {})}
    return {key: unquoted(value) for key, value in given.items()}


def deciding(made: Manifest) -> dict[str, str]:
    """What the result of a stage follows from: its settings, the digests of what it read, and one of all this with the code. The versions of
    programs that it names as its own are beside them."""
    inputs = {allowed(f"inputs.{role}"): content for role, content in made.inputs.items()}
    return params(made.settings) | params({"versions": made.facts.get("versions", {})}) | inputs | {"identity": made.identity}


def experiment_of(run: JsonObject) -> str:
    return run.get("experiment") or "snaketrain"


def tags(run: JsonObject, user: str) -> dict[str, str]:
    git = run.get("git") or {}
    found = {f"environment.{key}": str(value) for key, value in (run.get("environment") or {}).items()}
    found["mlflow.user"] = user
    if git.get("commit"):
        found |= {"mlflow.source.git.commit": git["commit"], "mlflow.source.git.dirty": str(bool(git.get("dirty"))).lower()}
    return found | {"mlflow.source.name": "workflow/scripts/train_model.py", "mlflow.source.type": "LOCAL", "pipeline.stage": "train"}


def of_several(run: JsonObject, training: Path) -> dict[str, str]:
    """Tags of a training that began with the model of another run, whose steps are not all its own, or are of more than one code and configuration."""
    base = (run["settings"]["model"].get("source") or {}).get("run")
    sent = read_json(training.parents[1] / base / "training/.mlflow.json") if base else None
    reused = read_json(training / "reused.json") or {}
    mixed = [f"{', '.join(change['changed'])} changed after step {change['step']}" for change in run.get("mixed") or ()]
    found = {"pipeline.trained_from": base or "", "pipeline.trained_from_run_id": (sent or {}).get("run_id", "")}
    found |= {"pipeline.took_over": str(reused.get("message", "")), "pipeline.mixed": cut("; ".join(mixed), LONGEST_TAG)}
    return {name: text for name, text in found.items() if text}


def note(
    run: JsonObject,
    sent: JsonObject,
    run_id: str,
    folder: Path,
    data_run: str | None,
    different: Sequence[str],
    several: dict[str, str],
) -> str:
    """The description of a run: how it ended, its result, the user's notes, its settings, what it began with, its data, its folder and how
    to repeat it.

    `sent`: what is known of it, with its `outcome` and the `why` of its end; `data_run`: the address of the run of its data; `different`:
    the settings in which the runs of its experiment differ.
    """
    data = run.get("data") or {}
    name = data.get("name", "")
    text = f"Data: {f'[{name}]({data_run})' if data_run else name} `{data.get('content', '')}`"
    own = {name: value for name, value in params(run["settings"]).items() if name in different}
    beside = ", ".join(f"`{name}` {value}" for name, value in list(own.items())[:MOST_DIFFERENT])
    also = [f"Beside the other runs: {beside}{', ...' if len(own) > MOST_DIFFERENT else ''}"] if own else []
    also += [f"It began with the selected model of {several['pipeline.trained_from']}."] if "pipeline.trained_from" in several else []
    also += [f"Mixed: {several['pipeline.mixed']}."] if "pipeline.mixed" in several else []
    also += [f"It {several['pipeline.took_over']}."] if "pipeline.took_over" in several else []
    repeat = f"; `snaketrain reproduce {run_id}` repeats its first steps" if "reproduce" in commands() else ""
    where = f"Folder: `{folder}`{repeat}"
    parts = [ending(sent.get("why", "")), sent.get("outcome", ""), run.get("notes") or "", *also, text if data else "", where]
    return hidden("\n\n".join(filter(None, parts)))


def ending(why: str) -> str:
    """The first paragraph of a description, unless the run finished: `Failed: <message>`."""
    if not why.startswith(("failed", "killed", "stopped")):
        return ""
    line = re.sub(r"([\\`*<>\[\]])", r"\\\1", " ".join(why.split())[:LONGEST_REASON])  # not as markdown
    return f"{line[:1].upper()}{line[1:]}"


def reason(reasons: JsonObject, stage: str) -> dict[str, str]:
    """Why Snakemake ran the stage, if that is known."""
    return {"snakemake.reason": reasons[stage]["reason"]} if stage in reasons else {}


def attempts(standing: JsonObject, why: str) -> dict[str, str]:
    """How often a training was started, in which SLURM jobs, what it warned of, and how it ended."""
    found = {"slurm.job_ids": ", ".join(standing["jobs"]), "pipeline.warnings": cut(warnings_of(standing), LONGEST_TAG)}
    return {name: text for name, text in found.items() if text} | {"pipeline.attempts": str(standing["attempts"]), END: why}


def time_table(seconds: dict[str, float]) -> JsonObject:
    """What the wall time of a training was spent on, as MLflow's pages show a table."""
    rows = [[name, round(value, 1), round(value / seconds["wall"], 4)] for name, value in seconds.items() if name != "goodput"]
    return {"columns": ["activity", "seconds", "share of the wall time"], "data": rows}


def samples_table(events: Iterable[Event]) -> JsonObject | None:
    """The samples of all evaluations of a training, of the last attempt where a step was repeated; None if there are none."""
    by_step = {event["step"]: event["samples"] for event in events}
    rows = [{"step": step, **sample} for step in sorted(by_step) for sample in by_step[step]][-MOST_SAMPLES:]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return {"columns": columns, "data": [[row.get(name, "") for name in columns] for row in rows]} if rows else None


def numbers(prefix: str, content: JsonObject, time: float) -> list[Point]:
    """Every number in a flat dictionary as a roll-up: a point at step 0."""
    return [
        (f"{prefix}/{name}", float(value), time, 0)
        for name, value in content.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


def selected(selection: JsonObject, time: float) -> list[Point]:
    """The development metrics of the selected checkpoint. An average of checkpoints has none before its evaluation."""
    winner, averaged = selection["winner"], selection.get("averaged")
    return [("selected_step", float(winner["step"]), time, 0), *numbers("dev", {} if averaged else winner["metrics"], time)]


def scores(split: str, results: JsonObject, selection: JsonObject, time: float) -> list[Point]:
    """The metrics of an evaluation, without the development metrics of a checkpoint, which the selection has already sent."""
    metrics, chosen_by = results.get("metrics", {}), selection["metric"]
    found = metrics | {key: value for key, value in results.items() if key not in (*REPEATED, *metrics)}
    if (constant := baseline(results.get("baselines", {}), chosen_by, selection["mode"])) is not None:
        found[f"{chosen_by}_baseline"] = constant
    if split == "dev" and not selection.get("averaged"):
        found = {key: value for key, value in found.items() if key not in selection["winner"]["metrics"]}
    elif split != "dev" and (bounds := results.get("interval")):
        found |= {"accuracy_low": bounds[0], "accuracy_high": bounds[1]}
    return numbers(split, found, time)


def outcome(selection: JsonObject, value: float | None, test: JsonObject) -> str:
    """`**test accuracy 0.852** [0.83, 0.87], the best constant answer 0.500; dev accuracy 0.861 at step 120.`"""
    metric = spoken(selection["metric"])
    on_dev = f"dev {metric} {rounded(value)} at step {selection['winner']['step']}." if value is not None else ""
    if (on_test := test.get("metrics", {}).get(selection["metric"])) is None:
        return on_dev
    bounds = f" {found}" if selection["metric"] == "accuracy" and (found := interval(test).get(INTERVAL)) else ""
    constant = baseline(test.get("baselines", {}), selection["metric"], selection["mode"])
    beside = f", the best constant answer {rounded(constant)}" if constant is not None else ""
    return "; ".join(filter(None, [f"**test {metric} {rounded(on_test)}**{bounds}{beside}", on_dev]))


def interval(results: JsonObject) -> dict[str, str]:
    """The interval as one tag, which takes one column instead of two."""
    low, high = results.get("interval") or (None, None)
    return {} if low is None else {INTERVAL: f"[{rounded(low)}, {rounded(high)}]"}


def data_points(facts: JsonObject, time: float) -> list[Point]:
    """Counts of prepared data: `train/examples`, `odd/empty`, `vocab_size`."""
    found = [point for split, content in (facts.get("splits") or {}).items() for point in numbers(split, content, time)]
    rest = {
        key: value for key, value in facts.items() if key not in SETTINGS_OF_DATA and isinstance(value, int) and not isinstance(value, bool)
    }
    return found + numbers("odd", facts.get("odd") or {}, time) + [(name, float(value), time, 0) for name, value in rest.items()]


def dataset(run: JsonObject, prepared: Manifest | None) -> dict[str, str]:
    """The arguments of `Store.dataset`, in the JSON that MLflow's pages read."""
    data, facts = run["data"], prepared.facts if prepared else {}
    profile = {"num_rows": data.get("examples"), "label_names": facts.get("label_names"), "splits": facts.get("splits")}
    return {
        "name": str(data.get("name") or "data"),
        "digest": str(data["content"])[:36],
        "source": json.dumps({"uri": str(data.get("path", ""))}),
        "profile": strict_json.dumps({key: value for key, value in profile.items() if value is not None}),
    }


def follows(later: Manifest, earlier: Manifest) -> bool:
    """Whether a stage read this result of the previous stage, and not that of an earlier training in the same folder."""
    return earlier.content in later.inputs.values() or later.started >= earlier.finished


def status(standing: JsonObject, now: float, gone: str | None) -> tuple[str, str]:
    """MLflow's status and our reason; `gone`: why nothing writes to the journal any more."""
    found = STATUSES.get(standing["status"], "FAILED")
    if found != "RUNNING":
        return found, standing["why"]
    if not gone and now - standing["time"] > SILENT_SECONDS:
        gone = f"silent for more than {SILENT_SECONDS // 3600} hours"
    return ("KILLED", f"killed: {gone}") if gone else (found, standing["why"])


# --- What an error of MLflow means, and what can be done about it.


@dataclass(frozen=True)
class Problem:
    what: str
    advice: str = "Correct that"
    of_one_run: bool = False  # the others are recorded meanwhile


def problem_with(uri: str, error: Exception) -> Problem:
    text = str(error)
    if status := re.search(r"too many (5\d\d) error responses|(?:error|status) code (5\d\d)", text):
        return Problem(f"MLflow at {uri}: the server fails (HTTP {status[1] or status[2]})", "See the log of the server")
    if "Max retries exceeded" in text:
        return Problem(f"MLflow at {uri}: it does not answer", "Start it, or correct tracking.uri")
    if re.search(r"(error|status) code 40[13]", text):
        return Problem(
            f"MLflow at {uri}: access denied", "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        )
    return Problem(f"MLflow at {uri}: {first_line(error)}", "Start it, or correct tracking.uri")


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
