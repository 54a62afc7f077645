"""Sets that are added to a finished workspace: only they are prepared and evaluated."""

import csv
import json
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient
from sklearn.metrics import accuracy_score

from pipeline.test_staleness import configure, dry_run, jobs_in
from pipeline.workspace import KIND, REPOSITORY, UNKIND, snakemake

MORE = {
    "path": "more.jsonl",
    "text": "said",
    "label": "mood",
    "labels": {"+": "kind", "-": "unkind"},
    "checkpoints": "all",
}


def write_more(folder: Path) -> None:
    words = [*((word, "+") for word in KIND), *((word, "-") for word in UNKIND)]
    rows = [{"said": f"the {place} was very {word}", "mood": mood} for place in ("film", "plot", "story") for word, mood in words]
    (folder / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def finished(workspace, tmp_path_factory) -> Path:
    """A copy of a finished workspace with one of its runs."""
    folder = tmp_path_factory.mktemp("sets") / "project"
    shutil.copytree(workspace, folder, symlinks=True)
    for name in ("Snakefile", "workflow"):
        (folder / name).symlink_to(REPOSITORY / name)
    write_more(folder)
    configure(folder, runs={"small": {}})
    return folder


def test_only_new_sets_are_prepared_and_evaluated(finished):
    small, journal = finished / "results/runs/small", (finished / "results/runs/small/training/journal.jsonl").read_bytes()
    configure(finished, evaluation_sets={"more": MORE}, tracking__on_end="printenv SNAKETRAIN_FIGURES >> told.txt")
    assert jobs_in(dry_run(finished)) == {"fetch_input", "prepare_set", "evaluate_set small", "compare_runs"}
    snakemake(finished)
    assert (small / "training/journal.jsonl").read_bytes() == journal
    assert jobs_in(dry_run(finished)) == set()

    results = json.loads((small / "sets/more/more_results.json").read_text())
    with open(small / "sets/more/more_predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert results["examples"] == len(rows) == 30
    accuracy = accuracy_score([row["label"] for row in rows], [row["predicted"] for row in rows])
    assert results["metrics"]["accuracy"] == pytest.approx(accuracy)
    assert {row["label"] for row in rows} == {"kind", "unkind"}

    assert f"| more | accuracy | {accuracy:.4f} |" in (small / "selection/model/README.md").read_text()
    (figures,) = map(json.loads, (finished / "told.txt").read_text().splitlines())
    assert figures["test.more/accuracy"] == pytest.approx(accuracy) and "test/accuracy" in figures

    compared = finished / "results/comparison"
    with open(compared / "runs.csv", newline="") as file:
        table = {row["run"]: row for row in csv.DictReader(file)}
    assert float(table["small"]["test.more_accuracy"]) == pytest.approx(accuracy) and float(table["small"]["test.more_baseline"]) == 0.5
    assert "<h2>Evaluation sets</h2>" in (compared / "index.html").read_text()

    with open(compared / "checkpoints.csv", newline="") as file:
        kept = [row for row in csv.DictReader(file) if row["run"] == "small"]
    steps = sorted(int(path.name.removeprefix("step-")) for path in (small / "training/checkpoints").glob("step-*"))
    assert [int(row["step"]) for row in kept] == steps and len(steps) > 1
    (chosen,) = [row for row in kept if row["selected"] == "True"]
    assert float(chosen["accuracy"]) == pytest.approx(accuracy) and len({row["loss"] for row in kept}) == len(steps)

    client = MlflowClient(f"sqlite:///{finished}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("words").experiment_id], "tags.`pipeline.run` = 'small'")
    assert run.data.metrics["test.more/accuracy"] == pytest.approx(accuracy, rel=1e-4)
    curve = client.get_metric_history(run.info.run_id, "test.more.checkpoints/accuracy")
    assert sorted(point.step for point in curve) == steps


def test_a_damaged_set_is_restored_alone(finished):
    (damaged,) = finished.glob("results/sets/more-*/test.arrow")
    content = damaged.read_bytes()
    damaged.unlink()
    assert jobs_in(dry_run(finished)) == {"prepare_set"}
    damaged.write_bytes(content)


def test_a_changed_set_is_evaluated_again(finished):
    content = (finished / "more.jsonl").read_text()
    (finished / "more.jsonl").write_text(content.replace("very", "not"))
    assert jobs_in(dry_run(finished)) == {"fetch_input", "prepare_set", "evaluate_set small", "compare_runs"}
    (finished / "more.jsonl").write_text(content)


def test_another_metric_costs_no_training(finished):
    configure(finished, evaluate__metrics=["matthews_correlation"])
    planned = jobs_in(dry_run(finished))
    assert planned == {"evaluate_set small", "evaluate_model small", "compare_runs"}
