"""What stages write can be read by any program: no NaN and no infinity in a file, and NaN again where metrics are read."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from workspace import make_workspace

from snaketrain.evaluation import comparing
from snaketrain.evaluation.predicting import baselines
from snaketrain.evaluation.results import write_results
from snaketrain.runtime import strict_json
from snaketrain.runtime.journal import Journal, as_line, read_events
from snaketrain.runtime.manifests import Manifest, digest, digests, read_manifest, write_json, write_manifest
from snaketrain.tasks.base import Task
from snaketrain.tracking import tracked
from snaketrain.training.checkpoints.ranking import best_first, evaluated
from snaketrain.training.early_stopping import evaluations

INF, NAN = math.inf, math.nan
METRICS = {"loss": INF, "pearson": NAN, "mae": 0.25, "least": -INF}
WRITTEN = {"loss": None, "pearson": None, "mae": 0.25, "least": None}


def strict(text: str):
    """As programs that keep to the standard read it: Python would accept NaN."""

    def refuse(constant: str):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_are_not_finite_are_null_everywhere():
    content = {"metrics": METRICS, "rows": [(NAN, 1), {"deep": np.float64("inf")}], "text": "NaN", "exact": 0.1 + 0.2, "flag": True}
    expected = {"metrics": WRITTEN, "rows": [[None, 1], {"deep": None}], "text": "NaN", "exact": 0.1 + 0.2, "flag": True}
    assert strict(strict_json.dumps(content)) == expected
    assert content["metrics"]["loss"] == INF, "what was given has not changed"


def test_only_metrics_are_nan_again():
    found = strict_json.loads('{"kind": null, "winner": {"metrics": {"a": null, "b": 1}}, "metrics": null}')
    assert (
        found["kind"] is found["metrics"] is None and math.isnan(found["winner"]["metrics"]["a"]) and found["winner"]["metrics"]["b"] == 1
    )


def test_a_journal_is_strict_and_read_as_it_was_measured(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    heard = []
    journal.listeners.append(heard.append)
    journal.write("train", step=1, metrics=METRICS)
    journal.file.close()
    text = (tmp_path / "journal.jsonl").read_text()
    assert strict(text)["metrics"] == WRITTEN and heard[0]["metrics"] == METRICS
    (event,), _ = read_events(tmp_path / "journal.jsonl")
    assert math.isnan(event["metrics"]["pearson"]) and math.isnan(event["metrics"]["loss"]) and event["metrics"]["mae"] == 0.25
    assert as_line(event) == text, "what another training takes over is the same line"


def test_a_manifest_is_the_same_before_and_after_it_was_written(tmp_path):
    """Otherwise a stage that made the same result again would make all later ones stale."""
    made = Manifest("train_model", "1", {}, {}, {}, {"checkpoints": {"10": METRICS}})
    write_manifest(tmp_path / "manifest.json", made)
    assert strict((tmp_path / "manifest.json").read_text())["facts"]["checkpoints"]["10"] == WRITTEN
    assert read_manifest(tmp_path / "manifest.json").content == made.content and digest(NAN) == digest(None)


def test_checkpoints_without_a_finite_metric_are_not_selected(tmp_path):
    for step, value in enumerate((0.5, NAN, INF, -INF), 1):
        write_json(tmp_path / f"step-{step}/state.json", {"step": step, "metrics": {"accuracy": value, "loss": NAN}, "scaler": {}})
        strict((tmp_path / f"step-{step}/state.json").read_text())
    assert all([each.step for each in best_first(evaluated(tmp_path), "accuracy", mode)] == [1] for mode in ("max", "min"))


def test_evaluations_that_were_taken_over_are_numbers_again(tmp_path):
    evaluated = [{"event": "eval", "step": step, "metrics": metrics, "attempt": -1} for step, metrics in ((5, METRICS), (9, {"loss": 1.0}))]
    reused = {"event": "reused", "step": 9, "steps": 12, "training": "other", "unknown": [], "attempt": 0}
    (tmp_path / "journal.jsonl").write_text("".join(map(as_line, [*evaluated, reused])))
    found = evaluations(tmp_path)
    assert math.isnan(found.pop(5)["pearson"]) and found == {9: {"loss": 1.0}}


class Empty(Task):
    def baselines(self, rows):
        return {"constant": {"answer": "the mean", "loss": 0.5, "pearson": NAN}}


def test_undefined_metrics_of_constant_answers_are_left_out():
    assert baselines(Empty(), {"output": torch.zeros(2).numpy()}, {}, {}) == {"constant": {"answer": "the mean", "loss": 0.5}}


@pytest.fixture
def results(tmp_path) -> Path:
    """A regression whose predictions are constant, of which the correlation is undefined."""
    folder = make_workspace(tmp_path, {"first": {"kind": "number"}}) / "runs/first"
    measured = {"examples": 3, "metrics": {"mae": 0.2, "pearson": NAN, "loss": INF}, "baselines": {}}
    rows = {"ids": np.arange(3), "predicted": np.ones(3), "loss": np.zeros(3)}
    facts = {"label_kind": "number", "label_names": [], "splits": {"train": {"examples": 3, "label_mean": 1.0}}}
    for split in ("dev", "test"):
        write_results(folder / "evaluation", "first", split, measured, rows, {"label": [1.0, 1.0, 1.0]}, facts, 0.95, 10)
    selection = strict_json.loads((folder / "selection/selection.json").read_text())
    write_json(folder / "selection/selection.json", selection | {"winner": selection["winner"] | {"metrics": {"mae": 0.2, "pearson": NAN}}})
    for stage in ("selection", "evaluation"):  # as they are now
        made = read_manifest(folder / stage / "manifest.json")
        write_manifest(Path(made.path), replace(made, files=digests(made.folder, made.files)))
    return folder.parents[1]


def test_every_file_of_a_run_with_undefined_metrics_is_strict(results):
    files = [*results.rglob("*.json"), *results.rglob("*.jsonl")]
    assert {"test_results.json", "selection.json", "journal.jsonl"} <= {file.name for file in files}
    for file in files:
        for text in file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]:
            strict(text)
    written = strict((results / "runs/first/evaluation/test_results.json").read_text())
    assert written["metrics"] == {"mae": 0.2, "pearson": None, "loss": None} and "r2" not in written["baselines"]["mean"]


def test_the_comparison_and_mlflow_read_nan_again(results):
    row = comparing.row(comparing.read_run(results / "runs/first"))
    assert row["test_mae"] == 0.2 and math.isnan(row["test_pearson"])
    selection = tracked.read_json(results / "runs/first/selection/selection.json")
    found = tracked.read_json(results / "runs/first/evaluation/test_results.json")
    points = {name: value for name, value, _, _ in [*tracked.selected(selection, 0.0), *tracked.scores("test", found, selection, 0.0)]}
    assert math.isnan(points["dev/pearson"]) and math.isnan(points["test/pearson"]) and points["test/mae"] == 0.2
