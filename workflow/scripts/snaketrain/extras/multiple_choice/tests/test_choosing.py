"""A workflow in which an encoder and a language model choose, on one process and two: figures again from the predictions, the page, `predict`; and a
training that is interrupted."""

import csv
import json
import random
import signal
from pathlib import Path

import numpy as np
import pytest
from distributed.running import interrupted, losses, start, train
from pipeline.workspace import KIND, NEUTRAL, UNKIND, configuration, make_workspace, snakemake

from snaketrain.config.schema import Model
from snaketrain.evaluation.predictions import metric_of, read_predictions
from snaketrain.runtime.journal import read_events

WITHOUT_DROPOUT = {"initializer_range": 0.2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}


def questions(count: int) -> list[dict]:
    """Of two to four choices one is kind."""
    draw = random.Random(0)
    rows = []
    for _ in range(count):
        question = " ".join(draw.choices(NEUTRAL, k=draw.randint(2, 6)))
        right = f"it is {draw.choice(KIND)}"
        choices = draw.sample([f"it {verb} {word}" for verb in ("is", "was") for word in UNKIND], draw.randint(1, 3))
        place = draw.randint(0, len(choices))
        choices.insert(place, right)
        rows.append({"question": question, "choices": choices, "answer": place})
    return rows


def settings() -> dict:
    usual = configuration()
    data = {
        "train": {"path": "questions.jsonl"},
        "text": ["question", "choices"],
        "label": "answer",
        "label_kind": "choice",
        "labels": None,
    }
    train = {"task": "multiple_choice", "epochs": 5, "learning_rate": 3e-3, "evaluations_per_epoch": 1}
    llama = {"model.use": "transformers.LlamaForCausalLM", "model.arguments": SMALL | {"initializer_range": 0.2}}
    return {
        "data": usual["data"] | data,
        "model": {"use": "transformers.BertForMultipleChoice", "arguments": usual["model"]["arguments"] | WITHOUT_DROPOUT},
        "train": usual["train"] | train,
        "predict": {"new": {"path": "new.jsonl"}},
        "runs": {"encoder": {}, "two": {"compute.processes": 2}, "writer": llama},
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("choosing")
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions(320)))
    new = [{name: value for name, value in row.items() if name != "answer"} for row in questions(12)]
    (folder / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in new))
    snakemake(make_workspace(folder, **settings()), tried=True)
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("run", ["encoder", "writer"])
def test_figures_follow_from_the_predictions(finished, run):
    folder = finished / "results/runs" / run / "evaluation"
    results, rows = json.loads((folder / "test_results.json").read_text()), rows_of(folder / "test_predictions.csv")
    for name, column in {"accuracy": "predicted", "normalized_accuracy": "normalized_predicted"}.items():
        right = sum(row["label"] == row[column] for row in rows) / len(rows)
        assert results["metrics"][name] == pytest.approx(right) and right > 0.85
    assert results["interval"][0] < results["metrics"]["accuracy"] <= results["interval"][1]
    assert run == "writer" or all(row["predicted"] == row["normalized_predicted"] for row in rows)
    assert results["baselines"]["majority"]["accuracy"] < 0.6 and all(
        int(row["predicted"]) < len(row["text_pair"].split("\n")) for row in rows
    )
    predictions = read_predictions(folder, "test", results)
    for name in ("loss", "accuracy", "normalized_accuracy"):
        assert metric_of(name, predictions)(np.ones(len(rows))) == pytest.approx(results["metrics"][name], abs=1e-6)


def journal(finished: Path, run: str) -> Path:
    return finished / "results/runs" / run / "training"


def evaluations(folder: Path) -> list[dict[str, float]]:
    return [event["metrics"] for event in read_events(folder / "journal.jsonl")[0] if event["event"] == "eval"]


def test_two_processes_equal_one(finished):
    assert losses(journal(finished, "two")) == pytest.approx(losses(journal(finished, "encoder")), rel=1e-4, abs=1e-5)
    for ours, theirs in zip(*(evaluations(journal(finished, run)) for run in ("two", "encoder")), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3, abs=1e-5) and ours["accuracy"] == pytest.approx(
            theirs["accuracy"], abs=0.03
        )


def test_new_questions_are_answered_and_the_page_has_the_hardest(finished):
    rows = rows_of(finished / "results/runs/encoder/predictions/new.csv")
    assert sum(row["predicted"] == str(given["answer"]) for row, given in zip(rows, questions(12), strict=True)) >= 10
    assert all(0 < float(row["probability"]) <= 1 for row in rows) and "label" not in rows[0]
    assert "The highest losses first" in (finished / "results/comparison/index.html").read_text()


@pytest.mark.slow
def test_a_killed_training_resumes_bit_for_bit(finished, tmp_path):
    (data,) = (finished / "results/data").glob("*/manifest.json")
    given = {"model": Model.model_validate(settings()["model"]), "task": "multiple_choice", "epochs": 8, "evaluations_per_epoch": 1}
    train(data, tmp_path / "whole", **given)
    pids = start(data, tmp_path / "parts", **given)
    assert interrupted(pids, signal.SIGKILL, lambda: list((tmp_path / "parts/checkpoints").glob("step-*"))) == [-signal.SIGKILL]
    train(data, tmp_path / "parts", **given)
    assert [event["event"] for event in read_events(tmp_path / "parts/journal.jsonl")[0]].count("attempt") == 2
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert evaluations(tmp_path / "parts")[-1] == evaluations(tmp_path / "whole")[-1]
