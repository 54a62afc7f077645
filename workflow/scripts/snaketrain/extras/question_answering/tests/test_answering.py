"""A workflow that answers questions: figures again from the predictions, the page, the verdict, `predict`; and trainings on two processes or interrupted."""

import csv
import json
import random
import signal
from pathlib import Path

import pytest
from distributed.running import interrupted, losses, start, train
from pipeline.workspace import KIND, NEUTRAL, UNKIND, configuration, make_workspace, snakemake

from snaketrain.config.schema import Model
from snaketrain.evaluation.predictions import metric_of, read_predictions
from snaketrain.extras.question_answering.answers import MEASURES
from snaketrain.runtime.journal import read_events

ASKED = {"it is good": KIND, "it is bad": UNKIND}


def questions(count: int) -> list[dict]:
    """Contexts of up to 24 words with at most one kind and one unkind word, of which the question asks for one."""
    draw = random.Random(0)
    rows = []
    for number in range(count):
        words = [draw.choice(NEUTRAL) for _ in range(draw.choice([6, 12, 22]))]
        question, wanted = draw.choice([*ASKED.items()])
        answer = draw.choice(wanted) if number % 4 else None
        other = draw.choice(UNKIND if wanted is KIND else KIND)
        for word in filter(None, (answer, other)):
            words.insert(draw.randint(0, len(words)), word)
        context = "  " + " ".join(words)  # characters at its beginning count
        found = {"text": [answer], "answer_start": [context.index(answer)]} if answer else {"text": [], "answer_start": []}
        rows.append({"id": f"q{number}", "question": question, "context": context, "answers": found})
    return rows


def settings() -> dict:
    usual = configuration()
    data = {
        "train": {"path": "questions.jsonl"},
        "text": ["question", "context"],
        "label": "answers",
        "label_kind": "answers",
        "labels": None,
        "stride": 5,
    }
    small = usual["model"]["arguments"] | {"initializer_range": 0.2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    train = {"task": "question_answering", "epochs": 8, "learning_rate": 3e-3, "evaluations_per_epoch": 1}
    return {
        "data": usual["data"] | data,
        "model": {"use": "transformers.BertForQuestionAnswering", "arguments": small},
        "train": usual["train"] | train,
        "select": {"metric": "f1"},
        "predict": {"new": {"path": "new.jsonl", "id": "id"}},
        "runs": {"quick": {}, "slow": {"train.learning_rate": 1e-4}},
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("answering")
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions(480)))
    new = [{name: value for name, value in row.items() if name != "answers"} for row in questions(12)]
    (folder / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in new))
    snakemake(make_workspace(folder, **settings()), tried=True)
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def results_of(finished: Path, run: str) -> tuple[dict, list[dict[str, str]]]:
    folder = finished / "results/runs" / run / "evaluation"
    return json.loads((folder / "test_results.json").read_text()), rows_of(folder / "test_predictions.csv")


def test_figures_follow_from_the_predictions(finished):
    results, rows = results_of(finished, "quick")
    right = [row["label"] == row["predicted"] for row in rows]  # of single words
    assert results["metrics"]["exact_match"] == pytest.approx(sum(right) / len(rows)) and results["metrics"]["exact_match"] > 0.85
    assert [float(row["exact_match"]) for row in rows] == right and results["metrics"]["f1"] >= results["metrics"]["exact_match"]
    nothing = [not row["label"] for row in rows]
    assert results["baselines"]["constant"]["f1"] == pytest.approx(sum(nothing) / len(rows)) and 0 < sum(nothing) < len(rows)
    assert results["without an answer"]["examples"] == sum(nothing)
    assert results["without an answer"]["exact_match"] == pytest.approx(
        sum(each and hit for each, hit in zip(nothing, right, strict=True)) / sum(nothing)
    )
    weighted = sum(float(row["loss"]) * int(row["windows"]) for row in rows) / sum(int(row["windows"]) for row in rows)
    assert results["metrics"]["loss"] == pytest.approx(weighted, rel=1e-5)
    assert {row["windows"] for row in rows} >= {"1", "2", "4"}, "long contexts have several"
    assert results["examples"] == len(rows) == 72


def test_every_metric_can_be_resampled(finished):
    results, rows = results_of(finished, "quick")
    predictions = read_predictions(finished / "results/runs/quick/evaluation", "test", results)
    assert predictions and predictions.form == "answers"
    for name in ("loss", *MEASURES):
        metric = metric_of(name, predictions)
        assert metric is not None, name
        assert metric([1.0] * len(rows)) == pytest.approx(results["metrics"][name], abs=1e-6)


def test_the_page_has_the_hardest_questions_and_a_verdict(finished):
    page = (finished / "results/comparison/index.html").read_text()
    assert "The highest losses first" in page and '<td class="text example">it is good</td>' in page
    assert "quick is ahead of slow: test F1" in page and "paired bootstrap over the same examples" in page


def test_new_questions_are_answered(finished):
    rows = rows_of(finished / "results/runs/quick/predictions/new.csv")
    assert [row["id"] for row in rows] == [f"q{number}" for number in range(12)]
    expected = [row["answers"]["text"] for row in questions(12)]
    assert sum([row["predicted"]] == (answer or [""]) for row, answer in zip(rows, expected, strict=True)) >= 10
    assert "label" not in rows[0] and "exact_match" not in rows[0]


# --- the training alone

ALONE = {"task": "question_answering", "epochs": 8, "evaluations_per_epoch": 1}


def trained(finished: Path, folder: Path, processes: int = 1) -> dict[int, float]:
    (data,) = (finished / "results/data").glob("*/manifest.json")
    return train(data, folder, processes, model=Model.model_validate(settings()["model"]), **ALONE)


@pytest.fixture(scope="module")
def alone(finished, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "whole"
    trained(finished, folder)
    return folder


def evaluations(folder: Path) -> list[dict[str, float]]:
    return [event["metrics"] for event in read_events(folder / "journal.jsonl")[0] if event["event"] == "eval"]


def test_losses_and_figures_are_equal_on_two_processes(finished, alone, tmp_path):
    assert trained(finished, tmp_path / "two", 2) == pytest.approx(losses(alone), rel=1e-4)
    before, *_ = zip(evaluations(tmp_path / "two"), evaluations(alone), strict=True)
    assert before[0]["loss"] == pytest.approx(before[1]["loss"], rel=1e-6), "however windows are padded"
    for ours, theirs in zip(evaluations(tmp_path / "two"), evaluations(alone), strict=True):
        assert ours["f1"] == pytest.approx(theirs["f1"], abs=0.02) and ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)


@pytest.mark.slow
def test_a_killed_training_resumes_bit_for_bit(finished, alone, tmp_path):
    (data,) = (finished / "results/data").glob("*/manifest.json")
    pids = start(data, tmp_path / "parts", model=Model.model_validate(settings()["model"]), **ALONE)
    assert interrupted(pids, signal.SIGKILL, lambda: list((tmp_path / "parts/checkpoints").glob("step-*"))) == [-signal.SIGKILL]
    trained(finished, tmp_path / "parts")
    assert [event["event"] for event in read_events(tmp_path / "parts/journal.jsonl")[0]].count("attempt") == 2
    assert losses(tmp_path / "parts") == losses(alone) and evaluations(tmp_path / "parts")[-1] == evaluations(alone)[-1]
