"""The figures of an evaluation, against scikit-learn, formulas written out, and counts by hand."""

import csv
import json
import math

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, log_loss, precision_score, recall_score

from snaketrain.results import calibration, wilson, write_results

NAMES = ["bad", "fair", "good", "never"]
FILES = ["results.json", "predictions.csv", "confusion.png", "reliability.png"]


@pytest.fixture
def predictions():
    random = np.random.default_rng(7)
    labels = random.choice(3, 300, p=[0.5, 0.3, 0.2])
    probabilities = random.dirichlet([1, 1, 1, 0.2], 300)
    probabilities[np.arange(300), labels] += 0.5
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    losses = -np.log(probabilities[np.arange(300), labels])
    texts = [f'say "{i}",\nagain' for i in range(300)]
    return {"ids": np.arange(300), "texts": texts, "labels": labels, "probabilities": probabilities, "losses": losses}


def test_figures_are_those_of_scikit_learn(tmp_path, predictions):
    results = write_results(tmp_path, "r", "test", NAMES, **predictions, confidence=0.95, bins=10)
    labels, predicted = predictions["labels"], predictions["probabilities"].argmax(axis=1)
    assert results["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert results["macro_f1"] == pytest.approx(f1_score(labels, predicted, labels=range(4), average="macro", zero_division=0))
    assert results["loss"] == pytest.approx(log_loss(labels, predictions["probabilities"], labels=range(4)))
    for i, name in enumerate(NAMES):
        assert results["classes"][name]["precision"] == pytest.approx(
            precision_score(labels, predicted, labels=[i], average="macro", zero_division=0)
        )
        assert results["classes"][name]["recall"] == pytest.approx(
            recall_score(labels, predicted, labels=[i], average="macro", zero_division=0)
        )
    assert results["majority_class"] == NAMES[np.bincount(labels).argmax()]
    assert results["majority_accuracy"] == pytest.approx(max(np.mean(labels == c) for c in range(3)))
    assert np.array(results["confusion"]).sum() == 300 and np.trace(results["confusion"]) == pytest.approx(300 * results["accuracy"])
    assert json.loads((tmp_path / "test_results.json").read_text()) == results
    assert all((tmp_path / f"test_{name}").stat().st_size for name in FILES)


def test_the_order_of_the_examples_does_not_matter(tmp_path, predictions):
    """Several processes give them in another order than one."""
    shuffled = np.random.default_rng(1).permutation(300)
    other = {key: [values[i] for i in shuffled] for key, values in predictions.items()}
    for folder, content in (("one", predictions), ("two", other)):
        write_results(tmp_path / folder, "r", "dev", NAMES, **content, confidence=0.9, bins=5)
    for name in ("predictions.csv", "results.json"):
        assert (tmp_path / "one" / f"dev_{name}").read_text() == (tmp_path / "two" / f"dev_{name}").read_text()


def test_predictions_can_be_read_again(tmp_path, predictions):
    write_results(tmp_path, "r", "test", NAMES, **predictions, confidence=0.95, bins=10)
    with open(tmp_path / "test_predictions.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == predictions["texts"]
    assert [NAMES.index(row["label"]) for row in rows] == predictions["labels"].tolist()
    assert all(row["probability"] == row[f"p_{row['predicted']}"] for row in rows)


def test_without_labels_there_are_predictions_only(tmp_path, predictions):
    results = write_results(tmp_path, "r", "test", NAMES, **(predictions | {"labels": np.full(300, -100)}), confidence=0.95, bins=10)
    assert results == {"run": "r", "split": "test", "examples": 300, "labelled": False}
    assert all((tmp_path / f"test_{name}").stat().st_size for name in FILES)
    with open(tmp_path / "test_predictions.csv", newline="", encoding="utf-8") as file:
        assert {row["label"] for row in csv.DictReader(file)} == {""}


@pytest.mark.parametrize(("right", "examples"), [(0, 10), (7, 10), (10, 10), (861, 1000)])
def test_wilson_interval_solves_its_equation(right, examples):
    """Its ends are the shares p that lie exactly z standard errors, at p, from the one that was found."""
    for confidence, z in ((0.95, 1.959964), (0.99, 2.575829)):
        for end in wilson(right, examples, confidence):
            assert abs(right / examples - end) == pytest.approx(z * math.sqrt(end * (1 - end) / examples), abs=1e-6)


def test_calibration_by_hand():
    bins = calibration(np.array([0.55, 0.59, 0.95, 1.0]), np.array([True, False, True, True]), 10)
    assert [b["examples"] for b in bins] == [2, 2]
    assert [b["accuracy"] for b in bins] == [0.5, 1.0]
    assert [b["probability"] for b in bins] == pytest.approx([0.57, 0.975])


def test_calibration_error_is_the_weighted_distance(tmp_path):
    probabilities = np.array([[0.55, 0.45], [0.59, 0.41], [0.05, 0.95], [0.0, 1.0]])
    arrays = {"ids": range(4), "texts": list("abcd"), "labels": [0, 1, 1, 1], "probabilities": probabilities, "losses": [0.1] * 4}
    results = write_results(tmp_path, "r", "dev", ["no", "yes"], **arrays, confidence=0.95, bins=10)
    assert results["calibration_error"] == pytest.approx(0.5 * 0.07 + 0.5 * 0.025)
