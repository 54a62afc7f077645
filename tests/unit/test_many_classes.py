"""What an evaluation writes of more classes than a file can have columns: the most frequent confusions and the highest scores."""

import csv
import json

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, f1_score, log_loss

from snaketrain.evaluation.page import MOST_IN_MATRIX, mistakes_of
from snaketrain.evaluation.paired import Contender, difference
from snaketrain.evaluation.predictions import METRICS, Predictions, metric_of, read_predictions
from snaketrain.evaluation.results import write_results
from snaketrain.labels.classes import MOST_IN_FULL, MOST_PROBABLE
from snaketrain.labels.one_class import MOST_PAIRS
from snaketrain.runtime.strict_json import JsonObject

EXAMPLES = 400
MANY = MOST_IN_FULL + 1


def facts_of(kind: str, classes: int) -> JsonObject:
    train = {"examples": 10, "label_counts": [1] * classes, "most_common_labels": ["0"]}
    return {"label_names": [str(number) for number in range(classes)], "label_kind": kind, "splits": {"train": train}}


def one_class(classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and probabilities that are highest for the label or a class near it; few classes occur, so that confusions recur."""
    random = np.random.default_rng(seed)
    labels = np.random.default_rng(0).integers(0, 30, EXAMPLES)
    scores = random.random((EXAMPLES, classes))
    scores[np.arange(EXAMPLES), (labels + random.integers(0, 4, EXAMPLES)) % 30] += classes
    return labels, scores / scores.sum(1, keepdims=True)


def write_one(folder, classes: int, seed: int = 0) -> tuple[JsonObject, Predictions]:
    labels, probabilities = one_class(classes, seed)
    guesses = probabilities.argmax(1)
    metrics = {
        "accuracy": float((guesses == labels).mean()),
        "macro_f1": f1_score(labels, guesses, average="macro", zero_division=0),
        "loss": log_loss(labels, probabilities, labels=range(classes)),
    }
    return write(folder, "class", classes, metrics, probabilities, labels.tolist())


def write(folder, kind: str, classes: int, metrics: dict, probabilities: np.ndarray, labels: list) -> tuple[JsonObject, Predictions]:
    measured = {"examples": EXAMPLES, "metrics": metrics, "baselines": {}}
    rows = {"ids": np.arange(EXAMPLES), "probabilities": probabilities, "loss": np.zeros(EXAMPLES)}
    write_results(folder, "r", "test", measured, rows, {"label": labels}, facts_of(kind, classes), 0.95, 10)
    results = json.loads((folder / "test_results.json").read_text())
    return results, read_predictions(folder, "test", results)


def columns_of(folder) -> list[str]:
    with open(folder / "test_predictions.csv", newline="", encoding="utf-8") as file:
        return next(csv.reader(file))


def test_up_to_a_thousand_classes_everything_is_written(tmp_path, capsys):
    results, _ = write_one(tmp_path, MOST_IN_FULL)
    assert np.array(results["confusion"]).shape == (MOST_IN_FULL, MOST_IN_FULL) and "confused" not in results
    assert columns_of(tmp_path) == ["id", "label", "predicted", "probability", *(f"p_{number}" for number in range(MOST_IN_FULL))]
    assert capsys.readouterr().out == ""


def test_more_have_the_most_frequent_confusions_and_the_highest_scores(tmp_path, capsys):
    results, predictions = write_one(tmp_path, MANY)
    said = capsys.readouterr().out
    assert said.startswith("test: 1,001 classes, more than 1,000: ") and "confusion matrix" in said
    labels, probabilities = one_class(MANY)
    matrix = confusion_matrix(labels, probabilities.argmax(1), labels=range(MANY))
    np.fill_diagonal(matrix, 0)
    assert "confusion" not in results and results["confused"]["pairs"] == (matrix > 0).sum() and len(results["classes"]) == MANY
    found = results["confused"]["most_frequent"]
    counts = [pair["examples"] for pair in found]
    assert counts == sorted(matrix.ravel(), reverse=True)[: len(found)] and len(found) == min(MOST_PAIRS, results["confused"]["pairs"]) > 12
    assert all(pair["examples"] == matrix[int(pair["true"]), int(pair["predicted"])] for pair in found)
    ranked = np.argsort(-probabilities, axis=1)[:, :MOST_PROBABLE]
    table = predictions.table
    assert table[[f"predicted_{place}" for place in range(1, 6)]].to_numpy(int).tolist() == ranked.tolist()
    written = table[[f"probability_{place}" for place in range(1, 6)]].to_numpy(float)
    assert written == pytest.approx(np.take_along_axis(probabilities, ranked, 1), abs=1e-6) and len(columns_of(tmp_path)) == 15
    assert table["label_probability"].to_numpy(float) == pytest.approx(probabilities[np.arange(EXAMPLES), labels], abs=1e-6)
    assert (tmp_path / "test_plots.png").stat().st_size


def test_the_page_lists_the_same_confusions_as_of_a_matrix(tmp_path):
    results, predictions = write_one(tmp_path, MANY)
    labels, probabilities = one_class(MANY)
    matrix = confusion_matrix(labels, probabilities.argmax(1), labels=range(MANY)).tolist()
    shown, in_full = mistakes_of("r", results, predictions), mistakes_of("r", results | {"confusion": matrix}, predictions)
    assert shown.confused == in_full.confused and len(shown.confused) == MOST_IN_MATRIX and shown.hardest == in_full.hardest != []


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "loss"])
def test_runs_are_compared_by_what_was_saved(tmp_path, metric):
    """McNemar's test, and the bootstrap of what the evaluation reported."""
    found = [write_one(tmp_path / str(seed), MANY, seed) for seed in (1, 2)]
    assert all(predictions.form == "class" and metric_of(metric, predictions) is not None for _, predictions in found)
    tested = difference(metric, *(Contender([results["metrics"][metric]], [predictions]) for results, predictions in found))
    assert tested is not None and tested.low < tested.high


def test_a_model_without_mistakes_has_no_confusions(tmp_path):
    probabilities = np.eye(MANY)[:EXAMPLES]
    results, predictions = write(tmp_path, "class", MANY, {"accuracy": 1.0}, probabilities, list(range(EXAMPLES)))
    assert results["confused"] == {"pairs": 0, "most_frequent": []} and mistakes_of("r", results, predictions).confused == []


def test_several_classes_have_the_highest_scores_and_the_largest_error(tmp_path, capsys):
    random = np.random.default_rng(0)
    true, probabilities = np.zeros((EXAMPLES, MANY)), random.random((EXAMPLES, MANY)) / 2
    for row, hits in enumerate(random.integers(0, 30, (EXAMPLES, 3))):
        true[row, hits] = 1
        probabilities[row, hits[:2]] += 0.5
    labels, guesses = [np.flatnonzero(row).tolist() for row in true], probabilities > 0.5
    averages = {f"{average}_f1": f1_score(true, guesses, average=average, zero_division=0) for average in ("micro", "macro")}
    results, predictions = write(tmp_path, "classes", MANY, averages, probabilities, labels)
    assert "5 most probable" in capsys.readouterr().out and predictions.form == "classes"
    assert predictions.numbers("largest_error").to_numpy() == pytest.approx(np.abs(probabilities - true).max(1), abs=1e-6)
    for name, value in averages.items():
        assert METRICS["classes", name](predictions)(np.ones(EXAMPLES)) == pytest.approx(value)
    worst = int(np.abs(probabilities - true).max(1).argmax())
    assert mistakes_of("r", results, predictions).hardest[0]["error"] == f"{np.abs(probabilities - true)[worst].max():.3f}"
