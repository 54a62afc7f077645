"""A search of a sweep, as a whole workflow: most runs stop at a rung, and the others end as if there had been no search."""

import csv
import json
import re
from pathlib import Path

import pytest
from mlflow import MlflowClient
from pipeline.test_staleness import configure, dry_run
from pipeline.test_without_extras import code_without
from pipeline.workspace import REPOSITORY, make_workspace, snakemake

from snaketrain.runtime.journal import read_events
from snaketrain.runtime.manifests import read_manifest

pytestmark = pytest.mark.lengthy

SMALL = "rate-learning_rate=0.001"  # has the settings of `small` in the shared workspace
CONTINUE, STOP = {SMALL, "rate-learning_rate=1e-05"}, {"rate-learning_rate=0.003", "rate-learning_rate=100.0"}
RATES = [0.001, 0.003, 1e-05, 100.0]
RUNG, LAST = 9, 22  # steps


def counts(printed: str) -> dict[str, int]:
    """How often each rule is planned."""
    return {rule: int(number) for rule, number in re.findall(r"^(\w+) +(\d+)$", printed, re.MULTILINE) if rule not in ("total", "all")}


def attempts(folder: Path, run: str) -> list[tuple[int, str, int]]:
    """The steps at which each began and ended, and its status."""
    events = read_events(folder / f"results/runs/{run}/training/journal.jsonl")[0]
    begins = [event["resume_step"] for event in events if event["event"] == "attempt"]
    ends = [(event["status"], event["step"]) for event in events if event["event"] == "end"]
    return [(begin, *end) for begin, end in zip(begins, ends, strict=True)]


@pytest.fixture(scope="module")
def searched(tmp_path_factory) -> tuple[Path, dict[str, int]]:
    """A finished search, and what was planned before it."""
    folder = tmp_path_factory.mktemp("search") / "project"
    sweep, search = {"rate": {"train.learning_rate": RATES}}, {"rate": {"rungs": [0.4], "keep": 0.5}}
    make_workspace(folder, runs={}, sweeps=sweep, search=search, select={"metric": "loss"})
    for name in ("Snakefile", "workflow"):
        (folder / name).symlink_to(REPOSITORY / name)
    planned = counts(dry_run(folder))
    snakemake(folder)
    return folder, planned


def test_a_dry_run_shows_the_jobs_up_to_the_decision(searched):
    folder, planned = searched
    assert planned == {"fetch_data": 1, "fetch_model": 1, "prepare_data": 1, "train_rung": 4, "decide_rung": 1, "compare_runs": 1}
    assert counts(dry_run(folder)) == {}


def test_each_step_is_taken_once_and_most_runs_stop(searched):
    folder, _ = searched
    assert {run: attempts(folder, run) for run in CONTINUE} == {run: [(0, "STOPPED", RUNG), (RUNG, "FINISHED", LAST)] for run in CONTINUE}
    assert {run: attempts(folder, run) for run in STOP} == {run: [(0, "STOPPED", RUNG)] for run in STOP}
    decision = json.loads((folder / "results/searches/rate/1/decision.json").read_text())
    assert {each["run"] for each in decision["ranking"] if each["continues"]} == CONTINUE
    values = [each["value"] for each in decision["ranking"]]
    assert values == sorted(values) and decision["ranking"][3]["why"] == f"dev loss {values[3]:.3f}, number 4; no more than 2 continue"


def test_a_searched_run_ends_with_the_weights_of_an_unsearched_one(searched, workspace):
    last = f"checkpoints/step-{LAST:08d}/model.safetensors"
    ours, theirs = (
        read_manifest(folder / f"results/runs/{run}/training/manifest.json") for folder, run in ((searched[0], SMALL), (workspace, "small"))
    )
    assert ours.files[last] == theirs.files[last]


def test_stopped_runs_are_listed_and_recorded(searched):
    folder, _ = searched
    with open(folder / "results/comparison/runs.csv", newline="") as file:
        table = {row["run"]: row for row in csv.DictReader(file)}
    assert {run for run, row in table.items() if row["status"] == "finished"} == CONTINUE
    assert {run: row["status"] for run, row in table.items() if run in STOP} == dict.fromkeys(
        STOP, "stopped at rung 1 of search rate, step 9"
    )
    page = (folder / "results/comparison/index.html").read_text()
    assert "Stopped early" in page and "no more than 2 continue" in page
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("words").experiment_id], "tags.`pipeline.stage` = 'train'")
    recorded = {run.data.tags["pipeline.run"]: run for run in runs}
    assert {name: run.info.status for name, run in recorded.items()} == dict.fromkeys(CONTINUE, "FINISHED") | dict.fromkeys(STOP, "KILLED")
    curves = {name: [point.step for point in client.get_metric_history(run.info.run_id, "train/loss")] for name, run in recorded.items()}
    assert all(max(curves[run]) == LAST for run in CONTINUE) and all(max(curves[run]) < RUNG for run in STOP)


def test_edits_of_a_finished_search(searched):
    folder, _ = searched
    configure(folder, sweeps={"rate": {"train.learning_rate": [*RATES, 0.01]}})
    assert counts(dry_run(folder)) == {"train_rung": 1, "decide_rung": 1, "compare_runs": 1}
    configure(folder, sweeps={"rate": {"train.learning_rate": RATES}}, search={"rate": {"rungs": [0.4], "keep": 0.25, "keep_tied": 0.25}})
    assert counts(dry_run(folder)) == {"decide_rung": 1, "compare_runs": 1}
    configure(folder, search={})
    planned = dry_run(folder)
    assert counts(planned) == {"train_model": 2, "select_checkpoint": 2, "evaluate_model": 2, "compare_runs": 1}, planned


def test_without_the_extra_its_section_is_refused(tmp_path):
    folder = make_workspace(tmp_path / "project", sweeps={"rate": {"train.learning_rate": RATES}}, search={"rate": {}})
    done = snakemake(folder, "--dry-run", snakefile=code_without(["search"], tmp_path / "code"), check=False)
    assert done.returncode and "search: no such section." in done.stdout + done.stderr
