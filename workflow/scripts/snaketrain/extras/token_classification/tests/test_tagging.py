"""A workflow that tags words: metrics again from the predictions, the page, the verdict, `predict`; and trainings on two processes or interrupted."""

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
from snaketrain.extras.token_classification.entities import all_figures, counts, types_of
from snaketrain.labels import label_kind
from snaketrain.runtime.journal import read_events

FIRST, LAST = UNKIND[:3], UNKIND[3:]


def sentences(count: int) -> list[dict[str, list[str]]]:
    """A kind word is an entity, and so are two unkind words."""
    draw = random.Random(0)
    rows = []
    for _ in range(count):
        parts = [
            draw.choice(
                [
                    [(draw.choice(NEUTRAL), "O")],
                    [(draw.choice(KIND), "B-GOOD")],
                    [(draw.choice(FIRST), "B-BAD"), (draw.choice(LAST), "I-BAD")],
                ]
            )
            for _ in range(draw.randint(2, 9))
        ]
        words, tags = zip(*(word for part in parts for word in part), strict=True)
        rows.append({"tokens": words, "ner_tags": tags})
    return rows


def settings() -> dict:
    usual = configuration()
    data = {
        "train": {"path": "tagged.jsonl"},
        "text": "tokens",
        "label": "ner_tags",
        "label_kind": "tags",
        "labels": None,
        "max_length": 12,
    }
    small = usual["model"]["arguments"] | {"initializer_range": 0.2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    train = {"task": "token_classification", "epochs": 5, "learning_rate": 3e-3, "evaluations_per_epoch": 1}
    return {
        "data": usual["data"] | data,
        "model": {"use": "transformers.BertForTokenClassification", "arguments": small},
        "train": usual["train"] | train,
        "select": {"metric": "f1"},
        "predict": {"new": {"path": "new.conll", "text": "words"}},
        "runs": {"quick": {}, "slow": {"train.learning_rate": 1e-4}},
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tagging")
    (folder / "tagged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sentences(240)))
    (folder / "new.conll").write_text(f"the\ngreat\nfilm\n\n{FIRST[0]}\n{LAST[0]}\nplot\n")
    snakemake(make_workspace(folder, **settings()), tried=True)
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def results_of(finished: Path, run: str) -> tuple[dict, list[dict[str, str]]]:
    folder = finished / "results/runs" / run / "evaluation"
    return json.loads((folder / "test_results.json").read_text()), rows_of(folder / "test_predictions.csv")


def test_figures_follow_from_the_predictions_of_words(finished):
    results, rows = results_of(finished, "quick")
    true, predicted = ([row[name].split() for row in rows] for name in ("label", "predicted"))
    assert all(len(row["text"].split()) == len(tags) == len(guesses) for row, tags, guesses in zip(rows, true, predicted, strict=True))
    found = counts(true, predicted, types_of(["B-BAD", "B-GOOD"])).sum(0)
    assert {name: results["metrics"][name] for name in all_figures(found)} == pytest.approx(all_figures(found))
    assert {name: each["examples"] for name, each in results["classes"].items()} == dict(zip(("BAD", "GOOD"), found[0, 2], strict=True))
    assert results["metrics"]["f1"] > 0.85 and results["baselines"]["majority"]["f1"] == 0
    cut = [row for row in rows if int(row["words_without_token"])]
    assert cut and all(len(row["text"].split()) == 10 + int(row["words_without_token"]) for row in cut), "cut off by max_length"
    assert all(row["predicted"].split()[10:] == ["O"] * int(row["words_without_token"]) for row in cut)
    assert results["words_without_token"] == sum(int(row["words_without_token"]) for row in cut)
    report = json.loads(next((finished / "results/data").glob("*/report.json")).read_text())
    assert report["odd"]["truncated"]["count"] and "tagged.jsonl, line" in report["odd"]["truncated"]["first"][0]


def test_every_metric_can_be_resampled(finished):
    results, rows = results_of(finished, "quick")
    predictions = read_predictions(finished / "results/runs/quick/evaluation", "test", results)
    assert predictions and predictions.form == "tags"
    for name in label_kind("tags").head.metrics:
        metric = metric_of(name, predictions)
        assert metric is not None, name
        assert metric([1.0] * len(rows)) == pytest.approx(results["metrics"][name], abs=1e-6)


def test_the_page_has_types_hardest_sentences_and_a_verdict(finished):
    page = (finished / "results/comparison/index.html").read_text()
    assert "GOOD" in page and "The highest losses first" in page
    assert "quick is ahead of slow: test F1" in page and "paired bootstrap over the same examples" in page


def test_words_of_a_file_without_tags_are_predicted(finished):
    rows = rows_of(finished / "results/runs/quick/predictions/new.csv")
    assert [row["text"] for row in rows] == ["the great film", f"{FIRST[0]} {LAST[0]} plot"]
    assert [row["predicted"] for row in rows] == ["O B-GOOD O", "B-BAD I-BAD O"]


# --- the training alone

ALONE = {"task": "token_classification", "epochs": 12, "evaluations_per_epoch": 1}


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


@pytest.mark.slow
def test_losses_and_figures_are_equal_on_two_processes(finished, alone, tmp_path):
    assert trained(finished, tmp_path / "two", 2) == pytest.approx(losses(alone), rel=1e-4)
    for ours, theirs in zip(evaluations(tmp_path / "two"), evaluations(alone), strict=True):
        assert ours["f1"] == pytest.approx(theirs["f1"], abs=0.01) and ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)


@pytest.mark.slow
def test_a_killed_training_resumes_bit_for_bit(finished, alone, tmp_path):
    (data,) = (finished / "results/data").glob("*/manifest.json")
    pids = start(data, tmp_path / "parts", model=Model.model_validate(settings()["model"]), **ALONE)
    assert interrupted(pids, signal.SIGKILL, lambda: list((tmp_path / "parts/checkpoints").glob("step-*"))) == [-signal.SIGKILL]
    trained(finished, tmp_path / "parts")
    assert [event["event"] for event in read_events(tmp_path / "parts/journal.jsonl")[0]].count("attempt") == 2
    assert losses(tmp_path / "parts") == losses(alone) and evaluations(tmp_path / "parts")[-1] == evaluations(alone)[-1]
