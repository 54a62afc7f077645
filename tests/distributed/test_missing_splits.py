"""A training without a test set, and a published model that is evaluated on a test set alone, through all stages."""

import contextlib
import csv
import json
from pathlib import Path

import pytest
from distributed.running import MODEL, run_stage
from pipeline.workspace import sentences, write_sentences, write_tokenizer
from sklearn.metrics import accuracy_score

from snaketrain.config.schema import Data, Examples, Model, Source, Train
from snaketrain.config.schema.model import Weights
from snaketrain.extras.evaluation_sets.settings import EvaluationSet
from snaketrain.runtime.journal import read_events
from snaketrain.runtime.stages import settings_words

USUAL = {"labels": {"0": "unkind", "1": "kind"}, "max_length": 16, "tokenizer": {"path": "tokenizer"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("splits")
    write_sentences(folder / "sentences.csv")
    write_tokenizer(folder / "tokenizer")
    run(folder, "fetch_source", "tokenizer", [], {"source": Source(path="tokenizer").as_json})
    return folder


def run(folder: Path, stage: str, output: str, arguments: list[str], settings: dict, processes: int = 1) -> str:
    with contextlib.chdir(folder):
        words = ["--output", f"results/{output}/manifest.json", *arguments, *settings_words(folder, stage, settings)]
        return run_stage(stage, words, folder / "log", processes)


def run_all(folder: Path, name: str, data: Data, train: Train, model: Model, fetched: list[str], processes: int = 1) -> dict[str, dict]:
    """Its results by split."""
    raw, prepared, run_folder = f"{name}/raw", f"{name}/data", f"runs/{name}"
    run(folder, "fetch_data", raw, [], {"data": {split: source.as_json for split, source in data.sources.items()}})
    tokenizer = ["--tokenizer", "results/tokenizer/manifest.json"]
    run(folder, "prepare_data", prepared, ["--raw", f"results/{raw}/manifest.json", *tokenizer], {"data": data.as_json})
    of_data = ["--data", f"results/{prepared}/manifest.json"]
    named = ["--run-name", name, "--device", "cpu", *fetched]
    run(folder, "train_model", f"{run_folder}/training", [*of_data, *named], {"train": train.as_json, "model": model.as_json}, processes)
    trained = [*of_data, "--training", f"results/{run_folder}/training/manifest.json"]
    run(folder, "select_checkpoint", f"{run_folder}/selection", trained, {"select": {"metric": "accuracy", "mode": None}})
    selected = [*trained, "--selection", f"results/{run_folder}/selection/manifest.json", *named]
    run(folder, "evaluate_model", f"{run_folder}/evaluation", selected, {"evaluate": {"batch_size": 7}}, processes)
    evaluation = folder / f"results/{run_folder}/evaluation"
    return {split: json.loads((evaluation / f"{split}_results.json").read_text()) for split in ("dev", "test")}


def test_a_model_trained_without_a_test_set_is_evaluated_on_one_alone(folder):
    file = Examples(path="sentences.csv")
    results = run_all(
        folder,
        "untested",
        Data(train=file, test_fraction=0, dev_fraction=0.2, **USUAL),
        Train(batch_size=16, epochs=6, learning_rate=5e-3),
        MODEL,
        [],
    )
    assert (results["dev"]["examples"], results["test"]["examples"], results["test"]["metrics"]) == (48, 0, {})
    assert results["dev"]["metrics"]["accuracy"] > 0.9, "it has learnt"
    evaluation = folder / "results/runs/untested/evaluation"
    assert (evaluation / "test_plots.png").is_file() and not (evaluation / "test_predictions.csv").exists()

    source = Weights(path="results/runs/untested/selection/model")
    run(folder, "fetch_source", "published", [], {"source": source.as_json})
    model = Model(use="transformers.AutoModelForSequenceClassification", source=source)
    fetched = ["--model", "results/published/manifest.json"]
    found = run_all(folder, "published", Data(test=file, **USUAL), Train(steps=0, warmup=100), model, fetched, processes=2)
    assert (found["dev"]["examples"], found["dev"]["metrics"], found["test"]["examples"]) == (0, {}, 240)
    labels = [("unkind", "kind")[label] for _, label in sentences(240)]
    with open(folder / "results/runs/published/evaluation/test_predictions.csv", newline="") as rows:
        predicted = {row["text"]: row["predicted"] for row in csv.DictReader(rows)}
    accuracy = accuracy_score(labels, [predicted[text] for text, _ in sentences(240)])
    assert found["test"]["metrics"]["accuracy"] == pytest.approx(accuracy) and accuracy > 0.9
    alone = measured_without_other_data(folder, named=["--run-name", "published", "--device", "cpu", *fetched])
    assert alone == pytest.approx(found["test"]["metrics"], rel=1e-6)
    selection = json.loads((folder / "results/runs/published/selection/selection.json").read_text())
    assert (selection["winner"]["step"], selection["winner"]["value"]) == (0, None)
    events = read_events(folder / "results/runs/published/training/journal.jsonl")[0]
    assert [event["event"] for event in events if event["event"] in ("train", "eval", "checkpoint", "end")] == ["eval", "checkpoint", "end"]


def measured_without_other_data(folder: Path, named: list[str]) -> dict[str, float]:
    """The metrics of the published model on the same examples as an evaluation set, where `data` has none."""
    nothing = Data(**USUAL)
    run(folder, "fetch_data", "nothing/raw", [], {})
    tokenizer = ["--tokenizer", "results/tokenizer/manifest.json"]
    run(folder, "prepare_data", "nothing/data", ["--raw", "results/nothing/raw/manifest.json", *tokenizer], {"data": nothing.as_json})
    run(folder, "fetch_source", "input", [], {"source": Source(path="sentences.csv").as_json})
    of_data = ["--data", "results/nothing/data/manifest.json"]
    reading = {"data": EvaluationSet(path="sentences.csv").reading(nothing).as_json}
    run(folder, "prepare_set", "set", [*of_data, "--place", "evaluation_sets.more", "--files", "results/input/manifest.json"], reading)
    report = json.loads((folder / "results/set/report.json").read_text())
    assert not any(issue["count"] for issue in report["odd"].values()), "nothing is trained on, so nothing can leak or be untrained"
    run_folder = "results/runs/published"
    stages = [f"--{stage}={run_folder}/{stage}/manifest.json" for stage in ("training", "selection")]
    settings = {"evaluate": {"batch_size": 7}, "set": {"checkpoints": "selected"}}
    of_set = ["--set", "results/set/manifest.json", "--set-name", "more"]
    run(folder, "evaluate_set", "runs/published/sets/more", [*of_data, *stages, *of_set, *named], settings)
    metrics: dict[str, float] = json.loads((folder / run_folder / "sets/more/more_results.json").read_text())["metrics"]
    return metrics
