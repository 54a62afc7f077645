"""The content of MLflow after the follower has run, in a real database: everything, once, whatever happened meanwhile."""

import json
import math
import os
import platform
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import limits
import pytest
from pipeline.lateness import seconds_behind
from pipeline.warm_python import warm_python
from snakemake.iocontainers import Wildcards
from workspace import SETTINGS, START, make_workspace

from snaketrain.evaluation.comparing import read_run, row
from snaketrain.orchestration import unfinished
from snaketrain.orchestration.unfinished import note_reasons
from snaketrain.runtime.journal import ACTIVITIES
from snaketrain.runtime.manifests import (
    Manifest,
    digests,
    read_checked,
    read_manifest,
    write_checked,
    write_json,
    write_manifest,
    write_text,
)
from snaketrain.runtime.processes import start_ticks
from snaketrain.tracking import following
from snaketrain.tracking.database import readable
from snaketrain.tracking.following import Follower, RunEnd
from snaketrain.tracking.mlflow_store import NOTE, PARENT, RUN_KEY, TAIL_BYTES, Store
from snaketrain.tracking.stage_results import LARGEST_BYTES
from snaketrain.tracking.tracked import LONGEST_PARAM, MODE, cut

pytestmark = pytest.mark.lengthy

SCRIPT = Path(__file__).parents[2] / "workflow/scripts/tools/follow_runs.py"
TRAINING = """
import itertools, json, sys, time
with open(sys.argv[1], "a") as journal:
    for step in itertools.count(100):
        event = {"event": "train", "step": step, "time": time.time(), "attempt": 1, "metrics": {"loss": 1 / step}}
        print(json.dumps(event), file=journal, flush=True)
        time.sleep(0.2)
"""
TABLES = ("experiments", "runs", "params", "metrics", "tags", "inputs", "input_tags", "datasets")


def follow(results: Path, uri: str) -> Store:
    """As one that has just been started."""
    follower = Follower(results, Store(uri))
    for training in follower.runs():
        follower.update(training)
    return follower.store


def content(folder: Path) -> dict:
    with sqlite3.connect(folder / "mlflow.db") as database:
        tables = {table: sorted(map(repr, database.execute(f"SELECT * FROM {table}"))) for table in TABLES}
    return tables | {"files": sorted(str(path) for path in (folder / "mlartifacts").rglob("*"))}


def training_run(store: Store, name: str = "first"):
    (run,) = store.client.search_runs([store.experiment("tests")], f"attributes.run_name = '{name}'")
    return run


def text_of(store: Store, run, artifact: str) -> str:
    return Path(store.client.download_artifacts(run.info.run_id, artifact)).read_text()


def history(store: Store, run, name: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in store.client.get_metric_history(run.info.run_id, name)]


def write(results: Path, *events: dict, torn: str = "", run: str = "first") -> None:
    with open(results / f"runs/{run}/training/journal.jsonl", "a", encoding="utf-8") as file:
        file.write("".join(json.dumps(event) + "\n" for event in events) + torn)


def loss(step: int, value: float, attempt: int = 1) -> dict:
    return {"event": "train", "step": step, "time": time.time(), "attempt": attempt, "metrics": {"loss": value}}


def test_everything_about_a_finished_run_is_sent(tmp_path, uri):
    results = make_workspace(tmp_path)
    for name in (".made-before.json", ".digests.json"):
        write_text(results / "runs/first/evaluation" / name, "{}")
    store = follow(results, uri)
    run = training_run(store)
    assert run.info.status == "FINISHED"
    assert (run.info.start_time, run.info.end_time) == (START * 1000, (START + 61) * 1000)
    assert run.data.params["train.learning_rate"] == "3e-05" and run.data.params["data.name"] == "phrases"
    metrics = run.data.metrics
    assert metrics["test/accuracy"] == pytest.approx(0.9) and metrics["selected_step"] == 60 and metrics["dev/accuracy"] == 0.9
    assert metrics["test/accuracy_low"] < 0.9 < metrics["test/accuracy_high"]
    assert not [name for name in metrics if name.startswith(("best/", "seconds/", "time/")) or "majority" in name]  # each figure once
    assert [step for step, _ in history(store, run, "train/loss")] == list(range(5, 65, 5))
    assert run.data.tags["mlflow.source.git.commit"] == "0123456789abcdef" and run.data.tags["environment.host"] == "laptop"
    files = {
        file.path
        for folder in ("evaluation", "data", "selection", "training")
        for file in store.client.list_artifacts(run.info.run_id, folder)
    }
    assert {"evaluation/test_results.json", "evaluation/dev_predictions.csv", "evaluation/test_plots.png"} < files
    assert {"data/report.json", "selection/selection.json", "training/manifest.json"} < files
    assert not [name for name in files if name.rpartition("/")[2].startswith(".")], "the pipeline's own state"


def test_an_average_of_checkpoints_has_the_metrics_of_its_evaluation(tmp_path, uri):
    """Its best checkpoint has others."""
    results = make_workspace(tmp_path, {"first": {"skill": 0.9}})
    path = results / "runs/first/selection/selection.json"
    chosen = json.loads(path.read_text())
    write_json(
        path, chosen | {"averaged": [60, 40], "winner": chosen["winner"] | {"value": 0.75, "metrics": {"accuracy": 0.75, "loss": 0.5}}}
    )
    selected, evaluated = (read_manifest(results / f"runs/first/{stage}/manifest.json") for stage in ("selection", "evaluation"))
    selected = replace(selected, files=digests(selected.folder, selected.files))
    write_manifest(selected.path, selected)
    write_manifest(evaluated.path, replace(evaluated, inputs={"selection": selected.content}))
    store = follow(results, uri)
    run = training_run(store)
    assert run.data.metrics["dev/accuracy"] == 0.9 and [value for _, value in history(store, run, "dev/accuracy")] == [0.9]
    assert row(read_run(results / "runs/first"))["selected_value"] == 0.9


def test_its_data_and_its_children(tmp_path, uri):
    store = follow(make_workspace(tmp_path), uri)
    run = training_run(store)
    children = store.client.search_runs([store.experiment("tests")], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
    assert {child.data.tags[RUN_KEY].split(":")[0] for child in children} == {"select", "evaluate"}
    assert {child.info.status for child in children} == {"FINISHED"}
    (data,) = store.client.search_runs([store.experiment("tests-data")])  # one, though two runs use it
    assert data.data.metrics["train/examples"] == 80 and data.data.metrics["odd/empty"] == 1
    assert not {"pad_token_id", "max_length"} & set(data.data.metrics), "settings are no figures"
    trainings = store.experiment("tests")
    condition = unquote(data.data.tags[NOTE].partition("searchFilter=")[2].partition("&")[0])
    assert f"#/experiments/{trainings}/runs?" in data.data.tags[NOTE] and len(store.client.search_runs([trainings], condition)) == 2
    (given,) = run.inputs.dataset_inputs
    assert given.dataset.digest == run.data.tags["pipeline.data"] and json.loads(given.dataset.source)["uri"].endswith("manifest.json")


def test_the_record_of_where_and_why(tmp_path, uri, monkeypatch):
    """Attempts, jobs, how the time was spent, why Snakemake ran it, changes of the code, packages, the ends of the logs."""
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    results = make_workspace(tmp_path)
    training = results / "runs/first/training"
    (training / "packages.txt").write_text("torch==2.13.0\n")
    (training / "code.diff").write_text("+  uri: https://anna:geheim@tracking.example\n")
    write_text(training / "code/own/task.py", "class Mine: ...\n")
    (training / "logs/failed/0123").mkdir(parents=True)
    (training / "logs/rank-8.log").write_text("the first of another node")
    (training / "logs/failed/0123/rank-1.txt").write_text("no such number")
    (training / "logs/rank-0.log").write_text("x" * 2 * TAIL_BYTES + "\ntoken hf_0123456789 refused\n")
    write_json(training.parent / "reasons.json", {"train_model": {"reason": "Missing output files: manifest.json"}})
    spent = dict.fromkeys(ACTIVITIES, 1.0)
    attempt = {"event": "attempt", "attempt": 2, "began": time.time(), "resume_step": 60, "time": time.time(), "job": "4711"}
    system = {"event": "system", "step": 62, "time": time.time(), "metrics": {"cpu_percent": 50.0}}
    end = {"event": "end", "status": "FINISHED", "time": time.time(), "attempt": 2, "step": 70, "spent": spent | {"steps": 5.0}}
    warnings = [{"event": "warning", "step": step, "time": time.time(), "message": f"rank {step} is slow"} for step in (62, 64)]
    skipped = [{"event": "bad_step", "step": step, "time": time.time(), "examples": [1], "processes": []} for step in (63, 64, 63)]
    write(results, attempt, system, *warnings, *skipped, end)
    store = follow(results, uri)
    run = training_run(store)
    assert run.data.tags["pipeline.warnings"] == (
        "rank 62 is slow; rank 64 is slow; no update in 2 steps, whose loss or gradient was not finite or a spike: 63, 64"
    )
    assert run.data.tags["pipeline.attempts"] == "2" and run.data.tags["slurm.job_ids"] == "4711"
    assert run.data.tags["pipeline.end"] == "finished" and run.data.tags["snakemake.reason"].startswith("Missing output")
    assert run.data.metrics["goodput"] == pytest.approx(5 / 9, rel=1e-4)
    table = json.loads((Path(run.info.artifact_uri) / "training/time.json").read_text())
    assert ["steps", 5.0, pytest.approx(5 / 9, rel=1e-3)] in table["data"] and ["wall", 9.0, 1.0] in table["data"]
    assert history(store, run, "system/cpu_percent") == [(62, 50.0)]
    artifacts = Path(run.info.artifact_uri)
    assert (artifacts / "training/packages.txt").read_text() == "torch==2.13.0\n"
    assert (artifacts / "training/code.diff").read_text() == "+  uri: https://***@tracking.example\n"
    assert (artifacts / "training/code/own/task.py").read_text() == "class Mine: ...\n"
    assert {path.name for path in (artifacts / "logs").iterdir()} == {"rank-0.log", "rank-1.txt"}
    log = (artifacts / "logs/rank-0.log").read_text()
    assert log.endswith("xx\ntoken *** refused\n") and len(log) <= TAIL_BYTES


def test_samples_of_generated_texts_are_a_table(tmp_path, uri):
    results = make_workspace(tmp_path, {"first": {"ends": "nothing"}})
    write(results, {"event": "samples", "step": 20, "time": START + 20, "samples": [{"prompt": "a <b>", "generated": "c"}]})
    store = follow(results, uri)
    write(results, {"event": "samples", "step": 40, "time": START + 40, "samples": [{"prompt": "a <b>", "generated": "d"}]})
    follow(results, uri)
    run = training_run(store)
    shown = json.loads(text_of(store, run, "training/samples.json"))
    assert shown == {"columns": ["step", "prompt", "generated"], "data": [[20, "a <b>", "c"], [40, "a <b>", "d"]]}
    assert [each["path"] for each in json.loads(run.data.tags["mlflow.loggedArtifacts"])] == ["training/samples.json"]


def test_the_files_of_a_further_stage_are_artifacts_and_the_numbers_that_it_states_are_metrics(tmp_path, uri):
    results = make_workspace(tmp_path, {"first": {}})
    selection = read_manifest(results / "runs/first/selection/manifest.json").content
    folder = results / "runs/first/answers"
    write_text(folder / "new.csv", "id,text,generated\n0,a,b\n")
    write_manifest(
        folder / "manifest.json",
        Manifest(
            "answer_questions",
            "0123",
            {"questions": {"path": "x"}},
            {"selection": selection},
            {"new.csv": "01"},
            {"metrics": {"words": 7}},
            START + 63,
        ),
    )
    store = follow(results, uri)
    run = training_run(store)
    assert text_of(store, run, "answers/new.csv").startswith("id,text,generated")
    children = store.client.search_runs([store.experiment("tests")], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
    stages = {child.info.run_name: child.data.tags["pipeline.stage"] for child in children}
    assert stages == {"first selection": "select", "first evaluation": "evaluate", "first answers": "answer"}
    (answers,) = (child for child in children if child.info.run_name == "first answers")
    assert run.data.metrics["answers/words"] == 7 and answers.data.metrics == {"answers/words": 7}


def test_a_run_ends_with_its_evaluation_on_all_sets_that_the_workflow_has_planned(tmp_path, uri, monkeypatch):
    monkeypatch.setattr(unfinished, "evaluates", lambda rule: rule.startswith("evaluate_"))  # also without the extra
    results = make_workspace(tmp_path, {"first": {}})
    folder, jobs = results / "runs/first", [planned("evaluate_set", name) for name in ("tweets", "emails")]
    note_reasons([planned("evaluate_model"), *jobs], lambda job: "new", results)
    selection = read_manifest(folder / "selection/manifest.json").content
    noted = json.loads((folder / "reasons.json").read_text())["evaluate_set"]
    for name in ("tweets", "emails"):
        (end,) = ends(results, uri)
        assert end.awaited_since == noted["time"] and noted["sets"] == ["tweets", "emails"]
        write_json(folder / f"sets/{name}/{name}_results.json", {"split": name, "metrics": {"accuracy": 0.5}})
        made = Manifest(
            "evaluate_set", "1", {}, {"selection": selection}, digests(folder / f"sets/{name}", [f"{name}_results.json"]), {}, START
        )
        write_manifest(folder / f"sets/{name}/manifest.json", made)
    (end,) = ends(results, uri)
    assert end.awaited_since == 0 and end.time == read_manifest(folder / "sets/emails/manifest.json").finished
    assert end.figures()["test.emails/accuracy"] == 0.5


def planned(stage: str, name: str | None = None) -> SimpleNamespace:
    wildcards = Wildcards(fromdict={"run": "first"} | ({"evaluation_set": name} if name else {}))
    return SimpleNamespace(wildcards=wildcards, rule=SimpleNamespace(name=stage))


def ends(results: Path, uri: str) -> list[RunEnd]:
    follower = Follower(results, Store(uri))
    assert follower.update_all() is None
    return list(follower.ends.values())


def test_each_stage_is_a_run_with_what_decided_it_and_its_small_files(tmp_path, uri):
    """Fetches too; no data, weights or predictions are copied into the runs of the stages."""
    results = make_workspace(tmp_path, {"first": {}})
    sources = {"raw/phrases": "fetch_data", "models/bert": "fetch_model", "inputs/new": "fetch_input", "sets/tweets": "prepare_set"}
    for folder, stage in sources.items():
        write_text(results / folder / "files/part.json", "[]")
        write_json(results / folder / "huge.json", "x" * LARGEST_BYTES)
        files = digests(results / folder, ["files/part.json", "huge.json"])
        made = Manifest(stage, "0123", {"source": {"path": "x", "limit": None}}, {"files": "4567"}, files, {}, START)
        write_manifest(results / folder / "manifest.json", made)
    write_text(results / "comparison/index.html", "<p>first</p>")
    inputs = {"first": read_manifest(results / "runs/first/evaluation/manifest.json").content}
    made = Manifest("compare_runs", "0123", {}, inputs, {"index.html": ""}, {"runs": ["first"], "verdict": "one run"}, START)
    write_manifest(results / "comparison/manifest.json", made)
    for _ in range(2):
        store = (follower := Follower(results, Store(uri))).store
        assert follower.update_all() is None
    found = store.client.search_runs([each.experiment_id for each in store.client.search_experiments()])
    params = {run.data.tags["pipeline.stage"]: run.data.params for run in found}
    files = {run.data.tags["pipeline.stage"]: sorted(each.path for each in store.client.list_artifacts(run.info.run_id)) for run in found}
    assert len(found) == len(params), "no stage has two runs"
    fetched = {stage: {"source.path": "x", "inputs.files": "4567", "identity": "0123"} for stage in sources.values()}
    assert {stage: params[stage] for stage in sources.values()} == fetched
    assert {stage: set(params[stage]) for stage in params.keys() - fetched.keys()} == {
        "prepare": {"data.name", "identity"},
        "train": set(SETTINGS),
        "select": {"inputs.training", "identity"},
        "evaluate": {"evaluate.bins", "inputs.selection", "identity"},
        "compare": {"inputs.first", "identity"},
    }
    results_and_plots = [f"{split}_{what}" for split in ("dev", "test") for what in ("plots.png", "results.json")]
    assert files == {stage: ["manifest.json"] for stage in fetched} | {
        "prepare": ["manifest.json", "report.json"],
        "train": ["data", "evaluation", "selection", "training"],
        "select": ["manifest.json", "selection.json"],
        "evaluate": sorted(["manifest.json", *results_and_plots]),
        "compare": ["index.html", "manifest.json"],
    }
    (compared,) = (run for run in found if run.data.tags["pipeline.stage"] == "compare")
    assert compared.data.tags[NOTE] == "one run" and compared.data.metrics["runs"] == 1
    assert text_of(store, compared, "index.html") == "<p>first</p>"
    content = {run.data.tags["pipeline.stage"]: run.data.tags.get("pipeline.content") for run in found}
    assert params["select"]["inputs.training"] == content["train"]
    assert params["evaluate"]["inputs.selection"] == content["select"] and params["compare"]["inputs.first"] == content["evaluate"]


def test_a_fetch_that_is_repeated_stays_one_run_and_one_of_the_same_settings_has_its_own(tmp_path, uri, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    results = make_workspace(tmp_path, {"first": {}})
    write_manifest(
        results / "raw/a/manifest.json", Manifest("fetch_data", "0123", {}, {}, {"train/x": "01"}, {"token": "hf_0123456789"}, START)
    )
    write_manifest(results / "raw/b/manifest.json", Manifest("fetch_data", "0123", {}, {}, {"train/x": "01"}, {}, START))
    follower = Follower(results, Store(uri))
    assert follower.update_all() is None
    made = Manifest("fetch_data", "0123", {}, {}, {"train/x": "01", "train/y": "02"}, {}, START)
    write_manifest(results / "raw/b/manifest.json", made)
    assert follower.update_all() is None
    where, only = [follower.store.experiment("tests-data")], "tags.`pipeline.stage` = 'fetch_data'"
    found = {run.info.run_name: run for run in follower.store.client.search_runs(where, only)}
    assert {name: run.data.metrics["files"] for name, run in found.items()} == {"fetch_data a": 1, "fetch_data b": 2}
    assert found["fetch_data b"].data.tags["pipeline.content"] == made.content
    assert json.loads(text_of(follower.store, found["fetch_data a"], "manifest.json"))["facts"] == {"token": "***"}


def with_less(state: Path) -> None:
    """As an earlier version of the code may have written it."""
    content = json.loads(state.read_text())
    if "standing" in content:
        del content["standing"]["why"]
    state.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "befalls", [lambda state: None, Path.unlink, with_less], ids=["again", "after losing its state", "another version"]
)
def test_following_again_changes_nothing(tmp_path, uri, befalls):
    results = make_workspace(tmp_path)
    follow(results, uri)
    before = content(tmp_path)
    for state in results.rglob(".mlflow.json"):
        befalls(state)
    follow(results, uri)
    assert content(tmp_path) == before
    assert len(list(results.rglob(".mlflow.json"))) == 3


def test_a_journal_that_grows_with_repeated_steps_and_a_torn_line(tmp_path, uri):
    results = make_workspace(tmp_path, {"first": {"ends": "nothing"}})
    follow(results, uri)
    write(
        results,
        {"event": "attempt", "attempt": 2, "time": time.time()},
        loss(60, 99.0, 2),
        loss(65, 0.25, 2),
        torn='{"event": "train", "st',
    )
    store = follow(results, uri)
    points = history(store, training_run(store), "train/loss")
    assert points[-1] == (65, 0.25) and len(points) == 13 and (60, 99.0) not in points
    write(results, torn='ep": 70, "time": 4e9, "attempt": 2, "metrics": {"loss": 0.125}}\n')
    store = follow(results, uri)
    assert history(store, training_run(store), "train/loss")[len(points) :] == [(70, 0.125)]
    before = content(tmp_path)
    (results / "runs/first/training/.mlflow.json").unlink()
    follow(results, uri)
    assert content(tmp_path) == before


def test_an_evaluation_of_lost_weights_is_replaced_by_the_next_attempts(tmp_path, uri, empty_database):
    """MLflow keeps every point, but shows the later one; if both are read at once, the first one is never sent."""
    results = make_workspace(tmp_path, {"first": {"ends": "nothing"}})
    evaluations = [{"event": "eval", "step": 80, "time": time.time() + n, "attempt": n, "metrics": {"accuracy": n / 4}} for n in (1, 2)]
    write(results, evaluations[0])
    store = follow(results, uri)
    assert training_run(store).data.metrics["eval/accuracy"] == 0.25
    write(results, {"event": "attempt", "attempt": 2, "resume_step": 60, "time": time.time()}, evaluations[1])
    run = training_run(store := follow(results, uri))
    assert run.data.metrics["eval/accuracy"] == 0.5 and history(store, run, "eval/accuracy")[-2:] == [(80, 0.25), (80, 0.5)]
    before = content(tmp_path)
    (results / "runs/first/training/.mlflow.json").unlink()
    follow(results, uri)
    assert content(tmp_path) == before
    make_workspace(tmp_path / "again", {"first": {"ends": "nothing"}})
    journal = "runs/first/training/journal.jsonl"
    (tmp_path / "again/results" / journal).write_text((results / journal).read_text())
    (tmp_path / "again/mlflow.db").write_bytes(empty_database.read_bytes())
    store = follow(tmp_path / "again/results", f"sqlite:///{tmp_path}/again/mlflow.db")
    told = history(store, training_run(store), "eval/accuracy")
    assert told[-1] == (80, 0.5) and (80, 0.25) not in told


def test_nan_stays_nan(tmp_path, uri):
    results = make_workspace(tmp_path, {"first": {"ends": "nothing"}})
    write(results, loss(65, math.nan), loss(70, 0.5))
    for _ in range(2):
        store = follow(results, uri)
        points = dict(history(store, training_run(store), "train/loss"))
        assert math.isnan(points[65]) and points[70] == 0.5 and len(points) == 14
        (results / "runs/first/training/.mlflow.json").unlink()


@pytest.mark.parametrize(("ends", "status"), [("FINISHED", "FINISHED"), ("STOPPED", "KILLED"), ("FAILED", "FAILED"), ("nothing", "KILLED")])
def test_status_at_the_end(tmp_path, uri, ends, status):
    store = follow(make_workspace(tmp_path, {"first": {"ends": ends}}), uri)  # silent for years: it was killed
    assert training_run(store).info.status == status


def test_a_training_whose_process_is_gone_was_killed(tmp_path, uri):
    results = make_workspace(tmp_path, {"first": {"ends": "nothing"}})
    write(results, loss(65, 0.25))  # just now
    process = subprocess.Popen(["sleep", "infinity"])
    owner = {"job": None, "host": platform.node(), "pid": process.pid, "started": start_ticks(process.pid)}
    write_json(results / "runs/first/training/owner.json", owner)
    try:
        assert training_run(follow(results, uri)).info.status == "RUNNING"
    finally:
        process.kill()
        process.wait()
    run = training_run(follow(results, uri))
    assert run.info.status == "KILLED"
    assert run.data.tags["pipeline.end"] == f"killed: process {process.pid} on {platform.node()} is gone"
    write_json(results / "runs/first/training/owner.json", owner | {"host": "elsewhere"})
    write(results, {"event": "attempt", "attempt": 2, "time": time.time()})
    assert training_run(follow(results, uri)).info.status == "RUNNING"  # where it may still be alive


@pytest.fixture
def squeue(tmp_path, programs):
    """A squeue that knows the jobs in one file, and notes in another what it was asked; and a scontrol that knows no others."""
    unknown = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    programs(squeue='echo "$*" >> $HERE/asked; cat $HERE/queue', scontrol=unknown)
    (tmp_path / "asked").touch()

    def queue(*jobs: str) -> list[str]:
        (tmp_path / "queue").write_text("".join(f"{job}\n" for job in jobs))
        return (tmp_path / "asked").read_text().splitlines()

    return queue


def in_job(results: Path, name: str, job: str) -> None:
    write_json(results / "runs" / name / "training/owner.json", {"job": job, "host": "node1", "pid": 1, "started": 1})


def test_slurm_is_asked_once_for_all_live_runs_and_not_in_every_pass(tmp_path, uri, squeue, monkeypatch):
    runs = {f"run-{number}": {"ends": "nothing", "train.seed": number} for number in range(4)}
    results = make_workspace(tmp_path, runs | {"done": {}, "failed": {"ends": "FAILED", "train.seed": 9}})
    for number, name in enumerate([*runs, "done", "failed"]):
        in_job(results, name, f"47{number}")
    squeue("470", "471", "472", "473")
    follow(results, uri)  # so that ended jobs are known
    follower = Follower(results, Store(uri))
    before = len(squeue("470", "471", "472", "473"))
    for _ in range(5):
        for training in follower.runs():
            follower.update(training)
    (asked,) = squeue("470", "472", "473")[before:]
    assert asked.endswith("--jobs=470,471,472,473")
    monkeypatch.setattr(following, "ASK_EVERY_SECONDS", 0.0)
    write(results, loss(65, 0.5), run="run-1")  # just now, so that its silence cannot be the reason
    follower.update(results / "runs/run-1/training")
    assert training_run(follower.store, "run-1").data.tags["pipeline.end"] == "killed: SLURM job 471 is over"
    asked = len(squeue())
    monkeypatch.setattr(following, "ASK_EVERY_SECONDS", 30.0)
    follower.update(results / "runs/run-0/training")
    assert len(squeue()) == asked


def test_a_requeued_job_is_alive(tmp_path, uri, squeue, monkeypatch):
    monkeypatch.setattr(following, "ASK_EVERY_SECONDS", 0.0)
    results = make_workspace(tmp_path, {"first": {"ends": "nothing"}})
    write(results, loss(65, 0.5))
    in_job(results, "first", "4711")
    squeue()
    follower = Follower(results, Store(uri))
    follower.update(results / "runs/first/training")
    assert training_run(follower.store).info.status == "KILLED"
    squeue("4711")
    write(results, {"event": "attempt", "attempt": 2, "time": time.time()})
    for _ in range(2):
        follower.update(results / "runs/first/training")
    assert training_run(follower.store).info.status == "RUNNING"


def test_a_live_run_costs_one_request_in_a_pass_that_has_something_to_send(tmp_path, uri, monkeypatch):
    results = make_workspace(tmp_path, {f"run-{number}": {"ends": "nothing", "train.seed": number} for number in range(3)})
    follower, requests = Follower(results, Store(uri)), []

    class Noted:
        def __getattr__(self, name):
            requests.append(name)
            return getattr(follower.store._client, name)

    for name in ("run-0", "run-1", "run-2"):
        write(results, loss(65, 0.5), run=name)
    assert follower.update_all() is None
    monkeypatch.setattr(Store, "client", Noted())
    assert follower.update_all() is None and requests == []
    for name in ("run-0", "run-1"):
        write(results, loss(70, 0.5), loss(75, 0.5), run=name)
    assert follower.update_all() is None and requests == ["log_batch", "log_batch"]


def test_a_run_that_cannot_be_recorded_is_tried_again_after_a_pause(tmp_path, uri, monkeypatch):
    results = make_workspace(tmp_path, {"broken": {}, "first": {"ends": "nothing", "train.seed": 1}})
    whole = (results / "runs/broken/training/run.json").read_text()
    (results / "runs/broken/training/run.json").write_text('{"run": "broken"}')
    follower, tried = Follower(results, Store(uri)), []
    update = follower.update
    monkeypatch.setattr(follower, "update", lambda training: (tried.append(training.parent.name), update(training)))
    now = time.monotonic()
    monkeypatch.setattr(following.time, "monotonic", lambda: now)
    for moment in range(8):
        now += following.RETRY_SECONDS / 5
        write(results, loss(65 + moment, 0.5))
        problem = follower.update_all()
        assert problem.of_one_run and "cannot be recorded" in problem.what
    assert tried.count("first") == 8 and tried.count("broken") == 2
    assert len(history(follower.store, training_run(follower.store), "train/loss")) > 8
    (results / "runs/broken/training/run.json").write_text(whole)
    now += following.RETRY_SECONDS
    assert follower.update_all() is None
    assert training_run(follower.store, "broken").info.status == "FINISHED"


def test_status_of_a_training_that_is_stopped_and_resumed(tmp_path, uri):
    results = make_workspace(tmp_path, {"first": {"ends": "STOPPED"}})
    assert training_run(follow(results, uri)).info.status == "KILLED"
    write(results, {"event": "attempt", "attempt": 2, "time": time.time()}, loss(65, 0.25, 2))
    assert training_run(follow(results, uri)).info.status == "RUNNING"
    write(results, {"event": "end", "status": "FINISHED", "time": time.time(), "attempt": 2})
    assert training_run(follow(results, uri)).info.status == "FINISHED"


@pytest.mark.parametrize(
    ("file", "old", "sent"), [("evaluation/test_results.json", "0.9", "dev/accuracy"), ("selection/selection.json", "0.9", None)]
)
def test_no_edited_figure_is_sent_and_that_is_told_once(tmp_path, uri, capsys, file, old, sent):
    results = make_workspace(tmp_path, {"first": {"skill": 0.9}})
    path = results / "runs/first" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, "0.7"))
    follow(results, uri)
    metrics = training_run(follow(results, uri)).data.metrics
    assert "test/accuracy" not in metrics and 0.7 not in metrics.values()
    assert sent is None or metrics[sent] == 0.9
    assert capsys.readouterr().err.count(f"warning: {path}: is not what was written") == 1


@pytest.mark.parametrize("file", ["training/run.json", "training/manifest.json", "evaluation/manifest.json", "reasons.json"])
def test_what_is_damaged_is_told(tmp_path, uri, capsys, file):
    results = make_workspace(tmp_path, {"first": {}})
    note_reasons([planned("evaluate_model")], lambda job: "new", results)
    path = results / "runs/first" / file
    path.write_text(path.read_text().replace("e", "a", 1))
    follow(results, uri)
    assert f"warning: {path}: it was changed after it was written" in capsys.readouterr().err


def test_damaged_reasons_are_told_when_they_are_written_again(tmp_path, capsys):
    for stage in ("evaluate_model", "train_model"):
        note_reasons([planned(stage)], lambda job: "new", tmp_path)
    path = tmp_path / "runs/first/reasons.json"
    assert set(read_checked(path)) == {"evaluate_model", "train_model"}
    path.write_text(path.read_text()[:-9])
    note_reasons([planned("evaluate_model")], lambda job: "new", tmp_path)
    assert set(read_checked(path)) == {"evaluate_model"} and f"warning: {path}: cannot be used" in capsys.readouterr().err


def test_an_edited_id_of_the_workspace_gives_no_second_row(tmp_path, uri):
    results = make_workspace(tmp_path, {"first": {}})
    before = training_run(follow(results, uri)).info.run_id
    path = results / ".workspace.json"
    text = path.read_text()
    path.write_text(text.replace('"id": "', '"id": "0'))
    with pytest.raises(ValueError, match=r"workspace\.json: was changed after it was written"):
        follow(results, uri)
    path.write_text(text)
    assert training_run(follow(results, uri)).info.run_id == before


def test_results_of_an_earlier_training_are_ignored(tmp_path, uri):
    results = make_workspace(tmp_path, {"first": {}})
    for path, change in (
        ("training/run.json", {"identity": "another"}),
        ("training/manifest.json", {"facts": {"other": 1}, "finished": time.time() + 9}),
    ):
        file = results / "runs/first" / path
        write_checked(file, read_checked(file) | change)
    assert "test/accuracy" not in training_run(follow(results, uri)).data.metrics


def test_results_of_a_checkpoint_that_is_not_selected_any_more_become_nan(tmp_path, uri):
    """MLflow can delete no metric; the others of the run are those of the checkpoint that is selected now."""
    results = make_workspace(tmp_path, {"first": {"skill": 0.9}})
    folder = results / "runs/first"
    selected, evaluated = (read_manifest(folder / stage / "manifest.json") for stage in ("selection", "evaluation"))
    write_json(folder / "sets/tweets/tweets_results.json", {"split": "tweets", "metrics": {"accuracy": 0.5}})
    on_set = Manifest(
        "evaluate_set", "1", {}, {"selection": selected.content}, digests(folder / "sets/tweets", ["tweets_results.json"]), {}, START
    )
    write_manifest(folder / "sets/tweets/manifest.json", on_set)
    measured = {"test/accuracy", "test/macro_f1", "test.tweets/accuracy"}
    assert measured <= training_run(follow(results, uri)).data.metrics.keys()

    write_manifest(folder / "selection/manifest.json", replace(selected, facts={"step": 40}, started=time.time() + 1))
    run = training_run(follow(results, uri))
    assert {name for name, value in run.data.metrics.items() if math.isnan(value)} >= measured and run.data.tags["interval"] == ""
    assert run.data.metrics["dev/accuracy"] == 0.9

    path = folder / "evaluation/test_results.json"
    found = json.loads(path.read_text())
    del found["metrics"]["macro_f1"], found["macro_f1"]
    write_json(path, found)
    now = read_manifest(folder / "selection/manifest.json")
    now_evaluated = replace(evaluated, identity="2", inputs={"selection": now.content}, files=digests(evaluated.folder, evaluated.files))
    write_manifest(folder / "evaluation/manifest.json", now_evaluated)
    run = training_run(follow(results, uri))
    assert run.data.metrics["test/accuracy"] == pytest.approx(0.9) and run.data.tags["interval"]
    assert [run.data.metrics[name] for name in ("test/macro_f1", "test.tweets/accuracy")] == pytest.approx([math.nan] * 2, nan_ok=True)


def test_a_run_deleted_in_mlflow_stays_deleted(tmp_path, uri):
    results = make_workspace(tmp_path)
    store = follow(results, uri)
    store.client.delete_run(training_run(store).info.run_id)
    store = follow(results, uri)
    assert not store.client.search_runs([store.experiment("tests")], "attributes.run_name = 'first'")
    assert training_run(store, "second").info.status == "FINISHED"


EQUAL_TRAININGS = {"first": {"skill": 0.9}, "second": {"skill": 0.7}}  # such as two runs that differ in `select` alone


def test_runs_of_equal_trainings_have_separate_rows(tmp_path, uri):
    results = make_workspace(tmp_path, dict(EQUAL_TRAININGS))
    identities = {json.loads(path.read_text())["identity"] for path in results.glob("runs/*/training/run.json")}
    assert len(identities) == 1
    store = follow(results, uri)
    runs = [training_run(store, name) for name in EQUAL_TRAININGS]
    assert runs[0].info.run_id != runs[1].info.run_id
    assert [run.data.metrics["dev/accuracy"] for run in runs] == [0.9, 0.7]
    for run in runs:
        children = store.client.search_runs([store.experiment("tests")], f"tags.`{PARENT}` = '{run.info.run_id}'")
        assert sorted(child.info.run_name for child in children) == [
            f"{run.info.run_name} {stage}" for stage in ("evaluation", "selection")
        ]


def test_workspaces_on_one_server_are_kept_apart_and_may_be_moved(tmp_path, uri):
    for name in ("here", "there"):
        follow(make_workspace(tmp_path / name, {"first": {}}), uri)
    store = Store(uri)
    of_training = [store.experiment("tests")], "attributes.run_name = 'first'"
    assert len(store.client.search_runs(*of_training)) == 2
    before = content(tmp_path)
    (tmp_path / "here").rename(tmp_path / "moved")
    follow(tmp_path / "moved/results", uri)
    assert len(store.client.search_runs(*of_training)) == 2
    assert content(tmp_path)["metrics"] == before["metrics"]


def test_the_view_has_our_columns_and_the_best_first(tmp_path, uri):
    follower = Follower(make_workspace(tmp_path), Store(uri))
    assert follower.update_all() is None
    all_runs, _, compared, first, second = follower.addresses("http://ui")
    experiment = follower.store.client.get_experiment_by_name("tests")
    view = json.loads(experiment.tags["mlflow.sharedViewState.snaketrain"])
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`dev/accuracy`", False)
    assert (
        view["selectedColumns"][:5]
        == view["columnOrder"][:5]
        == ["metrics.`dev/accuracy`", "metrics.`test/accuracy`", "tags.`interval`", "params.`train.learning_rate`", "params.`train.seed`"]
    )
    assert len(view["selectedColumns"]) <= 6
    assert "params.`train.batch_size`" not in view["selectedColumns"]  # equal in both
    where = f"http://ui/#/experiments/{experiment.experiment_id}/runs?viewStateShareKey=snaketrain"
    assert all_runs.endswith(f"{where}&workflowType=machine_learning")
    assert all(row.run_id in compared for row in follower.rows["tests"].values())


def test_only_a_few_addresses_are_printed_for_many_runs_or_experiments(tmp_path, uri):
    follower = Follower(make_workspace(tmp_path, {f"run-{number}": {"train.batch_size": number + 1} for number in range(12)}), Store(uri))
    follower.update_all()
    assert [address.split()[0] for address in follower.addresses("http://ui")] == ["all", "curves", "compared"]
    row = next(iter(follower.rows["tests"].values()))
    follower.rows |= {f"other-{number}": {"first": row} for number in range(12)}
    *some, more = follower.addresses("http://ui")
    assert [address.split()[0] for address in some] == ["tests", "other-0", "other-1", "other-2", "other-3"]
    assert more == f"8 more experiments   http://ui/#/experiments?{MODE}"


SWEEP = {
    f"rate-learning_rate={rate}-seed={seed}": {"train.learning_rate": float(rate), "train.seed": seed}
    for rate in ("1e-05", "3e-5")
    for seed in (0, 1)
}


def test_runs_of_a_sweep_are_grouped_by_configuration(tmp_path, uri):
    follower = Follower(
        make_workspace(tmp_path, {name: dict(changes) for name, changes in SWEEP.items()} | {"alone": {"train.batch_size": 8}}), Store(uri)
    )
    for _ in range(2):
        assert follower.update_all() is None
    found = {
        run.info.run_name: run
        for run in follower.store.client.search_runs([follower.store.experiment("tests")], "tags.`pipeline.stage` = 'train'")
    }
    assert set(found) == {"lr=1e-5-seed=0", "lr=1e-5-seed=1", "lr=3e-5-seed=0", "lr=3e-5-seed=1", "alone"}
    tags = {name: run.data.tags for name, run in found.items()}
    assert [tags[name]["configuration"] for name in sorted(tags)] == ["alone", "lr=1e-5", "lr=1e-5", "lr=3e-5", "lr=3e-5"]
    assert {name for name in tags if tags[name].get("sweep") == "rate"} == set(tags) - {"alone"}
    assert tags["lr=1e-5-seed=1"]["pipeline.run"] == "rate-learning_rate=1e-05-seed=1"
    colours = {name: tags[name]["mlflow.runColor"] for name in tags}
    assert colours["lr=1e-5-seed=0"] == colours["lr=1e-5-seed=1"] != colours["lr=3e-5-seed=0"]
    grouped = json.loads(follower.store.client.get_experiment_by_name("tests").tags["mlflow.sharedViewState.snaketrain-configurations"])
    assert grouped["groupBy"]["groupByKeys"] == [{"mode": "tag", "groupByData": "configuration"}]
    assert any(address.startswith("seeds") for address in follower.addresses("http://ui"))
    given = found["lr=1e-5-seed=0"].info.run_id
    follower.store.client.update_run(given, name="mine")
    assert Follower(follower.results, Store(uri)).update_all() is None
    assert follower.store.get(given).info.run_name == "mine", "a name given by a user"


def test_a_failed_run_says_so_in_its_description(tmp_path, uri):
    """Until it is resumed; text that a user has added stays."""
    results = make_workspace(tmp_path, {"first": {"ends": "nothing"}})
    write(
        results, {"event": "end", "status": "FAILED", "error": "RuntimeError: no `batch`\nof two lines", "time": time.time(), "attempt": 1}
    )
    store = follow(results, uri)
    note = training_run(store).data.tags[NOTE]
    assert note.startswith("Failed: RuntimeError: no \\`batch\\` of two lines\n\n") and "a *note*" in note
    store.client.set_tag(training_run(store).info.run_id, NOTE, f"{note}\n\nseen by Anna")
    write(
        results,
        {"event": "attempt", "attempt": 2, "time": time.time()},
        {"event": "end", "status": "FINISHED", "time": time.time(), "attempt": 2},
    )
    after = training_run(follow(results, uri)).data.tags[NOTE]
    assert after.startswith("a *note*") and after.endswith("seen by Anna")


def test_a_run_says_what_came_out_and_how_to_repeat_it(tmp_path, uri):
    results = make_workspace(tmp_path)
    store = follow(results, uri)
    run = training_run(store)
    (data,) = store.client.search_runs([store.experiment("tests-data")])
    outcome, notes, of_data, folder = run.data.tags[NOTE].split("\n\n")
    assert re.fullmatch(
        r"\*\*test accuracy 0\.900\*\* \[0\.\d+, 0\.\d+\], the best constant answer 0\.\d+; dev accuracy 0\.\d+ at step \d+\.", outcome
    )
    assert notes == "a *note*" and f"[phrases](#/experiments/{data.info.experiment_id}/runs/{data.info.run_id}?" in of_data
    assert folder == f"Folder: `{results}/runs/first`; `snaketrain reproduce {run.info.run_id}` repeats its first steps"
    assert run.data.tags["mlflow.user"] == (results / "runs/first/training/run.json").owner()
    assert store.client.get_experiment_by_name("tests").tags[NOTE].startswith("Kept up to date by snaketrain")
    (results / "runs/first/training/.mlflow.json").unlink()
    store.client.set_tag(run.info.run_id, NOTE, "Anna's own words")
    assert training_run(follow(results, uri)).data.tags[NOTE] == "Anna's own words"


def test_descriptions_name_the_settings_that_differ(tmp_path, uri):
    results = make_workspace(tmp_path, {"first": {"train.learning_rate": 1e-5}, "second": {"train.learning_rate": 1e-4, "train.seed": 1}})
    store = Store(uri)
    assert Follower(results, store).update_all() is None
    notes = [
        run.data.tags[NOTE] for run in store.client.search_runs([store.experiment("tests")]) if "train.learning_rate" in run.data.params
    ]
    shown = sorted(re.findall("Beside the other runs: (.*)", "\n".join(notes)))
    assert shown == ["`train.learning_rate` 0.0001, `train.seed` 1", "`train.learning_rate` 1e-05, `train.seed` 0"]


def test_settings_that_are_null_are_no_params(tmp_path, uri):
    run = training_run(follow(make_workspace(tmp_path, {"first": {"train.warmup": None, "train.exclude": [], "train.steps": 0}}), uri))
    assert not {"train.warmup", "train.exclude"} & set(run.data.params) and run.data.params["train.steps"] == "0"


def test_figures_have_five_digits_except_losses_that_are_compared_bit_for_bit(tmp_path, uri):
    results = make_workspace(tmp_path, {"first": {"ends": "nothing"}})
    write(
        results,
        {"event": "train", "step": 65, "time": time.time(), "attempt": 1, "metrics": {"loss": 1 / 3, "speed": 2 / 3, "tokens": 1234567.0}},
    )
    metrics = training_run(follow(results, uri)).data.metrics
    assert (metrics["train/loss"], metrics["train/speed"], metrics["train/tokens"]) == (1 / 3, 0.66667, 1234567)


def test_long_values_are_cut_visibly():
    assert cut("x" * LONGEST_PARAM, LONGEST_PARAM) == "x" * LONGEST_PARAM
    assert len(cut("x" * 9999, LONGEST_PARAM)) == LONGEST_PARAM and cut("x" * 9999, LONGEST_PARAM).endswith("… cut")


@pytest.mark.parametrize("name", ["there", "100% there"])
def test_artifacts_of_a_project_that_was_moved_or_copied(tmp_path, name, capsys):
    """MLflow keeps absolute paths: it would show no files any more, or those of the project that was copied, and write into that."""
    results = make_workspace(before := tmp_path / "here" / "project")
    subprocess.run(command(results, "--once"), check=True)
    shutil.copytree(before, after := tmp_path / name / "project")
    shutil.rmtree(before / "mlartifacts/tests")
    files = set((after / "mlartifacts").rglob("*.json"))
    capsys.readouterr()
    with readable(f"sqlite:///{after}/mlflow.db") as uri:
        store = Store(uri)  # and says nothing more
    assert capsys.readouterr().out.count(f"came from {before}; MLflow now finds the files of its runs in {after}/mlartifacts.") == 1
    run = training_run(store)
    assert "run.json" in Path(store.client.download_artifacts(run.info.run_id, "training/run.json")).name
    store.artifact(run.info.run_id, after / "results/runs/first/training/run.json", "again")
    added = set((after / "mlartifacts").rglob("*.json")) - files
    assert [path.parent.name for path in added] == ["again"]
    assert not (before / "mlartifacts/tests").exists()
    (linked := tmp_path / "link").symlink_to(after)
    with readable(f"sqlite:///{linked}/mlflow.db"):
        assert "came from" not in capsys.readouterr().out, "the same place by another name"


def test_a_process_that_is_killed_while_it_creates_a_database_leaves_none(tmp_path):
    """MLflow cannot open one with only some of its tables."""
    uri, beside = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / ".mlflow.db.new"
    creating = (
        f"import sys; sys.path.append({str(SCRIPT.parents[1])!r}); from snaketrain.tracking.mlflow_store import Store; Store({uri!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", creating])
    limits.until(beside.exists)
    process.kill()
    process.wait()
    assert not (tmp_path / "mlflow.db").exists()
    assert [each.name for each in Store(uri).client.search_experiments()] == ["Default"] and not beside.exists()


# --- the command


def command(results: Path, *more: str) -> list[str]:
    return [warm_python(), str(SCRIPT), "--results", str(results), *more]


def test_command_once(tmp_path, uri):
    results = make_workspace(tmp_path)
    (results / "runs/odd/training").mkdir(parents=True)
    (results / "runs/odd/training/run.json").write_text('{"run": "odd"}')
    done = subprocess.run(command(results, "--once"), capture_output=True, text=True)
    assert done.returncode == 0 and "odd/training: cannot be recorded" in done.stderr
    (results / "runs/odd/training/run.json").unlink()
    done = subprocess.run(command(results, "--once"), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    first, *addresses = done.stdout.splitlines()
    assert re.fullmatch(rf"MLflow is up to date with 2 runs\. Look at them: \S*bin/snaketrain ui --uri {uri}", first)
    assert addresses == [], "no server is there"


def test_command_with_an_unreachable_server(tmp_path):
    results = make_workspace(tmp_path, {"first": {}})
    done = subprocess.run(command(results, "--once", "--uri", "http://127.0.0.1:9"), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert len(done.stderr.splitlines()) == 1 and "Start it, or correct tracking.uri; then: " in done.stderr


def test_command_while_a_process_runs_and_one_at_a_time(tmp_path, uri):
    results = make_workspace(tmp_path, {"first": {"ends": "nothing"}})
    workflow = subprocess.Popen(["sleep", "infinity"])
    try:
        first = subprocess.Popen(
            command(results, "--uri", uri, "--while-pid", str(workflow.pid), "--interval", "0.2"), stdout=subprocess.PIPE, text=True
        )
        state = results / "runs/first/training/.mlflow.json"
        limits.until(state.exists)
        second = subprocess.run(command(results, "--uri", uri), capture_output=True, text=True)
        assert second.returncode == 0 and "Another follower is already running" in second.stdout
        os.kill(first.pid, signal.SIGINT)  # Ctrl-C is the workflow's business
        write(results, loss(65, 0.5))
        limits.until(lambda: json.loads(state.read_text())["high_water"].get("train/loss") == 65)
        write(results, loss(70, 0.25), {"event": "end", "status": "STOPPED", "time": time.time(), "attempt": 1})
    finally:
        workflow.kill()
        workflow.wait()
    assert "up to date with 1 run." in first.communicate(timeout=limits.seconds(60))[0] and first.returncode == 0
    run = training_run(store := Store(uri))
    assert run.info.status == "KILLED" and history(store, run, "train/loss")[-1] == (70, 0.25)


def test_curves_grow_while_a_training_runs(tmp_path, uri):
    """As a workflow starts it, beside a training that writes to its journal five times a second."""
    results = make_workspace(tmp_path, {"first": {"ends": "nothing"}})
    follower = subprocess.Popen(command(results, "--uri", uri, "--while-pid", str(os.getpid())), stdout=subprocess.DEVNULL)
    training = subprocess.Popen([sys.executable, "-c", TRAINING, str(results / "runs/first/training/journal.jsonl")])
    try:
        limits.until((results / "runs/first/training/.mlflow.json").exists)
        assert seconds_behind(tmp_path, results / "runs/first/training/journal.jsonl", seconds=8) <= limits.seconds(5)
    finally:
        for process in (training, follower):
            process.terminate()
            process.wait()


def test_a_store_is_emptied_while_a_follower_runs(tmp_path, uri, empty_database):
    """As a server's may be, of which we see no file."""
    results = make_workspace(tmp_path)
    follower = Follower(results, Store(uri))
    assert follower.update_all() is None
    before = history(follower.store, training_run(follower.store), "train/loss")
    with sqlite3.connect(empty_database) as empty, sqlite3.connect(tmp_path / "mlflow.db") as database:
        empty.backup(database)
    follower.forget()  # as before the last pass
    assert follower.update_all() is None
    assert history(follower.store, training_run(follower.store), "train/loss") == before
    assert training_run(follower.store).info.status == "FINISHED"


@pytest.mark.parametrize("deleted", ["tests", "tests-data"])
def test_a_deleted_experiment_is_reported_until_it_is_restored(tmp_path, uri, deleted):
    follower = Follower(make_workspace(tmp_path, {"first": {}}), Store(uri))
    assert follower.update_all() is None
    where = follower.store.experiment(deleted)
    follower.store.client.delete_experiment(where)
    follower.forget()
    trouble = follower.update_all()
    assert f"its experiment '{deleted}' was deleted" in trouble.what and "tracking.experiment" in trouble.advice
    assert f"(MLFLOW_TRACKING_URI={uri} mlflow experiments restore --experiment-id {where})" in trouble.advice
    follower.store.client.restore_experiment(where)
    follower.failed.clear()
    assert follower.update_all() is None
