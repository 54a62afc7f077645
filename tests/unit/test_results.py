"""The metrics of an evaluation against scikit-learn, explicit formulas and manual counts, for every label kind and without one."""

import csv
import json
import math
from contextlib import nullcontext
from unittest.mock import patch

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    log_loss,
    mean_absolute_error,
    mean_squared_error,
    precision_score,
    r2_score,
    recall_score,
)

from snaketrain.evaluation.predictions import named, read_predictions
from snaketrain.evaluation.results import write_results
from snaketrain.labels.classes import ClassReport

NAMES = ["bad", "fair", "good", "never"]
TEXTS = [f'say "{i}",\nagain' for i in range(300)]
METRICS = {"loss": 0.5}


def write(folder, rows, labels, facts, metrics=METRICS, table=None, confidence=0.95, drawn=False) -> dict:
    """`drawn`: also the picture, which takes most of the time."""
    examples = len(next(iter(rows.values()))) if rows else 300
    rows = {"ids": np.arange(examples)} | rows
    table = {"text": TEXTS[:examples], "label": labels} if table is None else table
    measured = {"examples": examples, "metrics": metrics, "baselines": {}}
    with nullcontext() if drawn else patch("snaketrain.evaluation.results.draw"):
        return write_results(folder, "r", "test", measured, rows, table, facts, confidence, 10)


def table_of(path) -> list[dict]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def facts_of(kind: str, **train) -> dict:
    return {"label_names": [] if kind == "number" else NAMES, "label_kind": kind, "splits": {"train": {"examples": 100} | train}}


ONE = facts_of("class")
SEVERAL = facts_of("classes", label_counts=[60, 20, 51, 0], most_common_labels=["bad", "good"])


@pytest.fixture
def one_class():
    random = np.random.default_rng(7)
    labels = random.choice(3, 300, p=[0.5, 0.3, 0.2])
    probabilities = random.dirichlet([1, 1, 1, 0.2], 300)
    probabilities[np.arange(300), labels] += 0.5
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return labels, {"probabilities": probabilities, "loss": -np.log(probabilities[np.arange(300), labels])}


def test_one_class_is_scored_as_by_scikit_learn(tmp_path, one_class):
    labels, rows = one_class
    results = write(tmp_path, rows, labels.tolist(), ONE, drawn=True)
    predicted = rows["probabilities"].argmax(axis=1)
    assert results["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert results["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro", zero_division=0))
    assert results["loss"] == pytest.approx(log_loss(labels, rows["probabilities"], labels=range(4)))
    for i, name in enumerate(NAMES):
        for key, score in (("precision", precision_score), ("recall", recall_score)):
            assert results["classes"][name][key] == pytest.approx(score(labels, predicted, labels=[i], average="macro", zero_division=0))
    assert results["majority_class"] == NAMES[np.bincount(labels).argmax()]
    assert results["majority_accuracy"] == pytest.approx(max(np.mean(labels == c) for c in range(3)))
    constant = np.full(300, np.bincount(labels).argmax())
    majority = results["baselines"]["majority"]
    assert majority["accuracy"] == pytest.approx(results["majority_accuracy"])
    assert majority["macro_f1"] == pytest.approx(f1_score(labels, constant, average="macro", zero_division=0))
    assert np.array(results["confusion"]).sum() == 300 and np.trace(results["confusion"]) == pytest.approx(300 * results["accuracy"])
    assert results["metrics"] == METRICS
    assert json.loads((tmp_path / "test_results.json").read_text()) == results
    assert (tmp_path / "test_plots.png").stat().st_size


def test_predictions_of_one_class_can_be_read_again(tmp_path, one_class):
    labels, rows = one_class
    write(tmp_path, rows, labels.tolist(), ONE)
    lines = table_of(tmp_path / "test_predictions.csv")
    assert [line["text"] for line in lines] == TEXTS
    assert [NAMES.index(line["label"]) for line in lines] == labels.tolist()
    assert all(line["probability"] == line[f"p_{line['predicted']}"] for line in lines)


@pytest.fixture
def several_classes():
    random = np.random.default_rng(8)
    labels = random.random((300, 4)) < [0.6, 0.2, 0.5, 0]
    probabilities = np.clip(random.random((300, 4)) * 0.7 + 0.3 * labels - [0, 0, 0, 0.3], 0, 1)
    return labels, {"probabilities": probabilities, "loss": random.random(300)}


def as_lists(labels) -> list[list[int]]:
    return [np.flatnonzero(row).tolist() for row in labels]


def test_several_classes_are_scored_as_by_scikit_learn(tmp_path, several_classes):
    labels, rows = several_classes
    results = write(tmp_path, rows, as_lists(labels), SEVERAL, drawn=True)
    predicted = rows["probabilities"] > 0.5
    scores = f1_score(labels, predicted, average=None, zero_division=0)
    assert [cells["f1"] for cells in results["classes"].values()] == pytest.approx(scores)
    assert [cells["examples"] for cells in results["classes"].values()] == labels.sum(axis=0).tolist()
    assert sum(b["examples"] for b in results["reliability"]) == labels.size
    for name, answer in (("most_common", [1, 0, 1, 0]), ("majority", [1, 0, 1, 0])):
        constant = np.tile(answer, (300, 1))
        baseline = results["baselines"][name]
        assert baseline["answer"] == "always bad, good"
        assert baseline["micro_f1"] == pytest.approx(f1_score(labels, constant, average="micro"))
        assert baseline["macro_f1"] == pytest.approx(f1_score(labels, constant, average="macro", zero_division=0))
        assert baseline["exact_match"] == pytest.approx(accuracy_score(labels, constant))
    assert (tmp_path / "test_plots.png").stat().st_size


def test_a_single_class_that_examples_have_or_not_is_scored_as_that_class(tmp_path):
    labels = np.array([1] * 6 + [0] * 4, float)[:, None]
    probabilities = np.array([0.9] * 5 + [0.1] * 3 + [0.9] * 2)[:, None]  # 5 found of 6, and 2 where there are none
    facts = {
        "label_names": ["spam"],
        "label_kind": "classes",
        "splits": {"train": {"examples": 10, "label_counts": [6], "most_common_labels": ["spam"]}},
    }
    table = {"text": TEXTS[:10], "label": [[0]] * 6 + [[]] * 4}
    results = write(tmp_path, {"probabilities": probabilities}, labels, facts, table=table)
    assert results["classes"]["spam"] == pytest.approx({"precision": 5 / 7, "recall": 5 / 6, "f1": 10 / 13, "examples": 6})
    baseline = results["baselines"]["majority"]
    assert baseline == pytest.approx({"micro_f1": 0.75, "macro_f1": 0.75, "exact_match": 0.6} | {"answer": "always spam"})


def test_predictions_of_several_classes_can_be_read_again(tmp_path, several_classes):
    labels, rows = several_classes
    write(tmp_path, rows, as_lists(labels), SEVERAL)
    lines = table_of(tmp_path / "test_predictions.csv")
    for key, expected in (("label", labels), ("predicted", rows["probabilities"] > 0.5)):
        assert [[name in line[key].split("|") for name in NAMES] for line in lines] == expected.tolist()
    assert [[float(line[f"p_{name}"]) for name in NAMES] for line in lines] == pytest.approx(rows["probabilities"], abs=1e-6)


@pytest.mark.parametrize("name", ["plot", "cast|crew", '["cast"]'])
def test_the_comparison_reads_several_classes_whatever_their_names(tmp_path, several_classes, name):
    labels, rows = several_classes
    train = {"examples": 100, "label_counts": [60, 20, 51, 0], "most_common_labels": [name, "good"]}
    facts = SEVERAL | {"label_names": [name, *NAMES[1:]], "splits": {"train": train}}
    results = write(tmp_path, rows, as_lists(labels), facts)
    predictions = read_predictions(tmp_path, "test", results)
    assert named(predictions, "label").toarray().tolist() == labels.tolist()
    assert named(predictions, "predicted").toarray().tolist() == (rows["probabilities"] > 0.5).tolist()


def test_numbers_are_compared_with_the_mean_of_the_training_data(tmp_path):
    random = np.random.default_rng(9)
    labels = random.normal(size=300)
    rows = {"predicted": labels + random.normal(size=300), "loss": np.zeros(300)}
    results = write(tmp_path, rows, labels.tolist(), facts_of("number", label_mean=0.25), drawn=True)
    constant, baseline = np.full(300, 0.25), results["baselines"]["mean"]
    assert baseline["loss"] == pytest.approx(mean_squared_error(labels, constant))
    assert baseline["mae"] == pytest.approx(mean_absolute_error(labels, constant))
    assert baseline["r2"] == pytest.approx(r2_score(labels, constant))
    lines = table_of(tmp_path / "test_predictions.csv")
    assert [float(line["label"]) for line in lines] == pytest.approx(labels)
    assert [float(line["predicted"]) for line in lines] == pytest.approx(rows["predicted"])
    assert (tmp_path / "test_plots.png").stat().st_size


@pytest.mark.parametrize(
    ("facts", "label", "rows"),
    [
        (ONE, -100, {"probabilities": np.full((300, 4), 0.25), "loss": np.zeros(300)}),
        (SEVERAL, None, {"probabilities": np.full((300, 4), 0.25), "loss": np.full(300, math.nan)}),
        (facts_of("number", label_mean=0.0), None, {"predicted": np.zeros(300), "loss": np.full(300, math.nan)}),
    ],
    ids=["class", "classes", "number"],
)
def test_without_labels_there_are_predictions_only(tmp_path, facts, label, rows):
    results = write(tmp_path, rows, [label] * 300, facts, metrics={}, drawn=True)
    del results["examples_digest"]
    assert results == {"run": "r", "split": "test", "examples": 300, "labelled": False, "kind": None, "metrics": {}, "baselines": {}}
    assert (tmp_path / "test_plots.png").stat().st_size
    lines = table_of(tmp_path / "test_predictions.csv")
    assert len(lines) == 300 and {line["label"] for line in lines} == {""} and "predicted" in lines[0]


def test_a_users_task_has_its_own_metrics_and_columns(tmp_path):
    random = np.random.default_rng(3)
    rows = {"depth": random.normal(size=300).astype(np.float32), "corner": random.integers(0, 9, (300, 2))}
    results = write(tmp_path, rows, [], {}, metrics={"iou": 0.5, "loss": 1.0}, table={})
    assert results["metrics"] == {"iou": 0.5, "loss": 1.0} and results["kind"] is None
    lines = table_of(tmp_path / "test_predictions.csv")
    assert list(lines[0]) == ["id", "depth", "corner_0", "corner_1"]
    assert [[int(line["corner_0"]), int(line["corner_1"])] for line in lines] == rows["corner"].tolist()
    assert np.array([float(line["depth"]) for line in lines], np.float32).tolist() == rows["depth"].tolist()
    # predictions named like a classifier's, for data without classes
    results = write(
        tmp_path, {"probabilities": np.ones((300, 2))}, [-100] * 300, {"label_kind": "class", "label_names": [], "splits": {"train": {}}}
    )
    assert results["kind"] is None and list(table_of(tmp_path / "test_predictions.csv")[0]) == [
        "id",
        "text",
        "probabilities_0",
        "probabilities_1",
    ]


def test_examples_without_texts_are_those_of_the_prepared_files(tmp_path):
    """Such as blocks of a running text: their number alone would make other data look like the same."""
    rows = {"perplexity": np.ones(300)}
    found = [
        write_results(tmp_path, "r", "dev", {"examples": 300, "metrics": METRICS, "baselines": {}}, rows, {}, {}, 0.95, 10, files)
        for files in ({"dev.arrow": "1"}, {"dev.arrow": "2"}, {"dev.arrow": "1"})
    ]
    first, other, again = (results["examples_digest"] for results in found)
    assert first == again != other


def test_labels_may_be_among_the_predictions(tmp_path, one_class):
    """As of data sets that are not tables."""
    labels, rows = one_class
    with_table = write(tmp_path / "a", rows, labels.tolist(), ONE)
    without = write(tmp_path / "b", rows | {"label": labels}, None, {"label_names": NAMES, "label_kind": "class"}, table={})
    assert without.pop("examples_digest") != with_table.pop("examples_digest")  # only one of them has texts
    assert without == with_table
    first, second = (table_of(tmp_path / folder / "test_predictions.csv") for folder in "ab")
    assert [{key: cell for key, cell in line.items() if key != "text"} for line in first] == second


def test_a_task_without_predictions_leaves_none_of_an_earlier_one(tmp_path, one_class):
    labels, rows = one_class
    write(tmp_path, rows, labels.tolist(), ONE)
    results = write(tmp_path, {}, labels.tolist(), ONE, drawn=True)
    assert results["metrics"] == METRICS and "accuracy" not in results
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test_plots.png", "test_results.json"]


@pytest.mark.parametrize(("right", "examples"), [(0, 10), (7, 10), (10, 10), (861, 1000)])
def test_wilson_interval_solves_its_equation(tmp_path, right, examples):
    """Its bounds are the shares p that are exactly z standard errors (at p) away from the observed share."""
    facts = {"label_names": ["no", "yes"], "label_kind": "class", "splits": {"train": {}}}
    labels = [1] * right + [0] * (examples - right)
    rows = {"probabilities": np.tile([0.2, 0.8], (examples, 1))}
    for confidence, z in ((0.95, 1.959964), (0.99, 2.575829)):
        for end in write(tmp_path, rows, labels, facts, table={"label": labels}, confidence=confidence)["interval"]:
            assert 0 <= end <= 1
            assert abs(right / examples - end) == pytest.approx(z * math.sqrt(end * (1 - end) / examples), abs=1e-6)


def test_calibration_by_hand():
    found = ClassReport.calibration(np.array([0.55, 0.59, 0.95, 1.0]), np.array([True, False, True, True]), 10)
    bins = found["reliability"]
    assert [b["examples"] for b in bins] == [2, 2]
    assert [b["accuracy"] for b in bins] == [0.5, 1.0]
    assert [b["probability"] for b in bins] == pytest.approx([0.57, 0.975])


def test_calibration_is_that_of_scikit_learn():
    random = np.random.default_rng(4)
    confidences = random.uniform(0.2, 1, 1000)
    right = random.random(1000) < confidences**2
    found = ClassReport.calibration(confidences, right, 15)["reliability"]
    shares, probabilities = calibration_curve(right, confidences, n_bins=15)
    assert [b["accuracy"] for b in found] == pytest.approx(shares) and [b["probability"] for b in found] == pytest.approx(probabilities)


def test_calibration_error_is_the_weighted_distance(tmp_path):
    probabilities = np.array([[0.55, 0.45], [0.59, 0.41], [0.05, 0.95], [0.0, 1.0]])
    rows = {"probabilities": probabilities, "loss": np.full(4, 0.1)}
    facts = {"label_names": ["no", "yes"], "label_kind": "class", "splits": {"train": {}}}
    assert write(tmp_path, rows, [0, 1, 1, 1], facts)["calibration_error"] == pytest.approx(0.5 * 0.07 + 0.5 * 0.025)
