"""The results of a finished workflow are correct, and other tools can load them."""

import csv
import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from distributed.running import run_stage
from sklearn.metrics import accuracy_score, f1_score

from pipeline.workspace import snakemake
from snaketrain.runtime.stages import settings_words

REPOSITORY = Path(__file__).parents[2]
RUN = "results/runs/small"


@pytest.fixture
def predictions(workspace):
    with open(workspace / RUN / "evaluation/test_predictions.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_metrics_follow_from_the_predictions(workspace, predictions):
    results = json.loads((workspace / RUN / "evaluation/test_results.json").read_text())
    labels, predicted = [row["label"] for row in predictions], [row["predicted"] for row in predictions]
    assert results["examples"] == len(predictions) == len({row["id"] for row in predictions})
    assert results["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert results["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert results["majority_accuracy"] == pytest.approx(max(map(labels.count, set(labels))) / len(labels))


def test_development_metrics_equal_those_logged_in_training(workspace):
    winner = json.loads((workspace / RUN / "selection/selection.json").read_text())["winner"]
    results = json.loads((workspace / RUN / "evaluation/dev_results.json").read_text())
    for name in ("accuracy", "macro_f1", "loss"):
        assert results[name] == pytest.approx(winner["metrics"][name], rel=1e-5), name


def test_transformers_loads_the_selected_model(workspace, predictions):
    from transformers import pipeline

    classify = pipeline("text-classification", str(workspace / RUN / "selection/model"), device="cpu")
    for row in predictions[:20]:
        (found,) = classify([row["text"]])
        assert found["label"] == row["predicted"]
        assert found["score"] == pytest.approx(float(row["probability"]), abs=1e-4)


def test_the_model_card_has_the_results_and_says_how_to_load_it(workspace, monkeypatch):
    from huggingface_hub import ModelCard

    card = ModelCard.load(workspace / RUN / "selection/model/README.md")
    found = {(each.dataset_split, each.metric_type): each.metric_value for each in card.data.eval_results}
    for split in ("dev", "test"):
        results = json.loads((workspace / RUN / f"evaluation/{split}_results.json").read_text())
        assert {name: found[split, name] for name in results["metrics"]} == results["metrics"]
    assert card.data.pipeline_tag == "text-classification" and "| train.learning\\_rate | 0.001 |" in card.text
    monkeypatch.chdir(workspace)
    loaded: dict = {}
    exec(card.text.split("```python\n")[1].split("```")[0], loaded)
    assert loaded["model"].config.id2label == {0: "unkind", 1: "kind"} and loaded["tokenizer"]("good film")["input_ids"]


@pytest.mark.parametrize(("processes", "launcher"), [(2, "torchrun"), (3, "forked")])
def test_every_example_counts_once_on_several_processes(workspace, tmp_path, processes, launcher):
    """The splits divide evenly neither by the processes nor by the batch size."""
    run = workspace / RUN
    data = next((workspace / "results/data").glob("*/manifest.json"))
    paths = {"--run-name": "small", "--output": tmp_path / "manifest.json", "--data": data}
    paths |= {"--training": run / "training/manifest.json", "--selection": run / "selection/manifest.json", "--device": "cpu"}
    options = [str(word) for pair in paths.items() for word in pair]
    settings = settings_words(tmp_path, "evaluate_model", {"evaluate": {"batch_size": 7, "confidence": 0.95, "bins": 10}})
    if launcher == "torchrun":
        torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", str(processes)]
        command = [*torchrun, str(REPOSITORY / "workflow/scripts/evaluate_model.py"), *options, *settings]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    else:
        run_stage("evaluate_model", [*options, *settings], tmp_path / "log", processes)
    for split in ("dev", "test"):
        expected, found = (json.loads((folder / f"{split}_results.json").read_text()) for folder in (run / "evaluation", tmp_path))
        assert found["confusion"] == expected["confusion"]
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_the_log_of_every_job_begins_with_its_command(workspace):
    logs = {path: path.read_text() for path in (workspace / "logs").rglob("*.log")}
    assert len(logs) == 3 + 2 * 3 + 1  # model, raw and prepared data; three stages of two runs; the comparison
    for path, text in logs.items():
        stage = path.stem if path.parent.name == "logs" else path.parent.name
        script = "fetch_source" if stage == "fetch_model" else stage
        assert f"scripts/{script}.py --" in text.splitlines()[0], text[:1000]


@pytest.mark.parametrize("stage", ["fetch_data", "select_checkpoint"])
def test_the_command_in_a_log_repeats_the_job(workspace, tmp_path, stage):
    folder = shutil.copytree(workspace, tmp_path / "project", symlinks=True)
    output = next(folder.glob("results/raw/*")) if stage == "fetch_data" else folder / RUN / "selection"
    before = json.loads((output / "manifest.json").read_text())
    shutil.rmtree(output)
    log = next((folder / "logs" / stage).glob("small.log" if stage == "select_checkpoint" else "*.log"))
    repeat(folder, log)
    after = json.loads((output / "manifest.json").read_text())
    assert (after["identity"], after["files"]) == (before["identity"], before["files"])


def repeat(folder: Path, log: Path) -> None:
    command = log.read_text().splitlines()[0]
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_snakemakes_report_begins_with_the_verdict(workspace):
    verdict = json.loads((workspace / "results/comparison/manifest.json").read_text())["facts"]["verdict"].splitlines()
    assert snakemake(workspace, "--report", "report.html").returncode == 0
    text = html.unescape(re.sub(r"\\u003[ce]|<[^>]*>", "", (workspace / "report.html").read_text()))
    assert all(line in text for line in verdict)
