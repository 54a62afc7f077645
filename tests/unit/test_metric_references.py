"""Each metric on 200 random sets, or 2,000 if WHOLE_BATTERY is set, against scikit-learn and scipy, wherever it is computed: while training, in an evaluation, and by weights.

Among the sets are those of one row or one class, with classes that are missing in the labels, the predictions or both, with equal scores,
constant targets, and targets whose mean is a million times their deviation.
"""

import functools
import math
import os
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn import metrics as sk

from snaketrain.config.schema import Metric
from snaketrain.evaluation.predictions import METRICS, Predictions
from snaketrain.labels import label_kind
from snaketrain.tasks.metric_names import KNOWN
from snaketrain.tasks.metrics import Measuring, make_metric
from snaketrain.tasks.text_classification import TextClassification
from snaketrain.training.building import add_metrics

pytestmark = pytest.mark.filterwarnings("ignore")  # scikit-learn's about what is undefined
TIMES = 10 if "WHOLE_BATTERY" in os.environ else 1
ARGUMENTS = {"f_beta": {"beta": 2}, "top_k_accuracy": {"top_k": 2}}


@functools.cache
def task_for(kind: str, classes: int) -> TextClassification:
    """With every metric that has a short name for it."""
    task, head = TextClassification(), label_kind(kind).head
    task.head = head
    names = [name for name in KNOWN[head.problem_type] if name != "f1" or classes == 2]
    facts = {"label_kind": kind, "label_names": [f"c{n}" for n in range(classes)] if kind != "number" else []}
    given = {name: Metric(use=name, arguments=ARGUMENTS.get(name, {})) for name in names}
    add_metrics(task, given, facts, "text_classification", "train.metrics")
    task.measured = {name: make_metric("", use, {}) for name, use in head.of_rows.items()} | task.measured
    return task


def measured(kind: str, logits: np.ndarray, labels: np.ndarray, cuts: list[int]) -> dict[str, float]:
    """As sums and rows of shares, which are added up and put together."""
    measuring = Measuring(task_for(kind, logits.shape[1]))
    for part, true in zip(np.split(logits, cuts), np.split(labels, cuts), strict=True):
        measuring.add(torch.from_numpy(part), {"labels": torch.from_numpy(true)}, len(true))
    return {name: value for name, value in measuring.metrics().items() if name != "loss"}


def differences(found: dict[str, float], expected: dict[str, float]) -> list[str]:
    return [
        f"{name}: {found.get(name)}, not {value}"
        for name, value in expected.items()
        if not math.isclose(found.get(name, math.inf), value, rel_tol=1e-5, abs_tol=2e-6)
        and not (math.isnan(value) and math.isnan(found.get(name, math.inf)))
    ] + [f"{name}: not compared" for name in found.keys() - expected.keys()]


def cuts_of(random: np.random.Generator, rows: int, number: int) -> list[int]:
    """Of one share, or three, of which some may be empty."""
    return sorted(random.integers(0, rows + 1, 2).tolist()) if number % 2 else []


def by_weights(predictions: Predictions, weights: np.ndarray) -> dict[str, float]:
    makers = {name: make(predictions) for (form, name), make in METRICS.items() if form == predictions.form and name != "loss"}
    return {name: metric(weights.astype(float)) for name, metric in makers.items() if metric}


def mean_where_defined(score, true: np.ndarray, scores: np.ndarray, negatives: bool = True) -> float:
    """Over the columns for which scikit-learn has a figure."""
    found = [score(y, s) for y, s in zip(true.T, scores.T, strict=True) if y.any() and (not negatives or not y.all())]
    return float(np.mean(found)) if found else math.nan


# --- one class for each example


def class_sets(number: int) -> Iterator[tuple[np.ndarray, np.ndarray, list[int]]]:
    random = np.random.default_rng(1)
    for each in range(number):
        classes, rows = int(random.choice([2, 2, 3, 4, 7])), int(random.choice([1, 2, 5, 12, 40]))
        labels = random.choice(random.permutation(classes)[: random.integers(1, classes + 1)], rows)
        logits = random.normal(size=(rows, classes)).round(int(random.choice([0, 1, 6]))).astype(np.float32)
        if random.random() < 0.4:
            logits[:, random.integers(classes)] -= 50  # never predicted
        yield logits, labels, cuts_of(random, rows, each)


def class_scores(labels: np.ndarray, guess: np.ndarray, shares: np.ndarray) -> dict[str, float]:
    classes = shares.shape[1]
    one_hot, average = np.eye(classes)[labels] > 0, "binary" if classes == 2 else "macro"
    options = {"average": average, "zero_division": 0}
    expected = {
        "accuracy": sk.accuracy_score(labels, guess),
        "macro_f1": sk.f1_score(labels, guess, average="macro", zero_division=0),
        "matthews_correlation": sk.matthews_corrcoef(labels, guess),
        "weighted_f1": sk.f1_score(labels, guess, average="weighted", zero_division=0),
        "f_beta": sk.fbeta_score(labels, guess, beta=2, **options),
        "precision": sk.precision_score(labels, guess, **options),
        "recall": sk.recall_score(labels, guess, **options),
        "balanced_accuracy": sk.balanced_accuracy_score(labels, guess),
        "cohen_kappa": sk.cohen_kappa_score(labels, guess),
        "quadratic_weighted_kappa": sk.cohen_kappa_score(labels, guess, labels=range(classes), weights="quadratic"),
    }
    if classes == 2:
        second = shares[:, 1]
        expected |= {"f1": sk.f1_score(labels, guess, zero_division=0), "auroc": sk.roc_auc_score(labels, second)}
        return expected | {"average_precision": sk.average_precision_score(labels, second), "top_k_accuracy": 1.0}
    if len(np.unique(labels)) == classes:
        auroc, precision = sk.roc_auc_score(labels, shares, multi_class="ovr"), sk.average_precision_score(labels, shares)
    else:  # scikit-learn refuses these, or has no figure
        auroc = mean_where_defined(sk.roc_auc_score, one_hot, shares)
        precision = mean_where_defined(sk.average_precision_score, one_hot, shares, negatives=False)
    top_two = sk.top_k_accuracy_score(labels, shares, k=2, labels=range(classes))
    return expected | {"auroc": auroc, "average_precision": precision, "top_k_accuracy": top_two}


def test_metrics_of_one_class():
    wrong = []
    for logits, labels, cuts in class_sets(90 * TIMES):
        shares = np.concatenate([torch.from_numpy(part).softmax(1).numpy() for part in np.split(logits, cuts)])
        guess, names = shares.argmax(1), [f"c{n}" for n in range(logits.shape[1])]
        found = measured("class", logits, labels, cuts)
        del found["calibration_error"]  # scikit-learn has none
        expected = class_scores(labels, guess, shares)
        wrong += differences(found, expected)

        report = label_kind("class").report({"label_names": names})
        scored = report.score(labels, {"probabilities": shares}, 0.95, 10)
        wrong += differences(
            {name: scored[name] for name in ("accuracy", "macro_f1")}, {name: expected[name] for name in ("accuracy", "macro_f1")}
        )
        always, baseline = np.full_like(labels, np.bincount(labels).argmax()), report.baselines(labels)["majority"]
        wrong += differences({"macro_f1": baseline["macro_f1"]}, {"macro_f1": sk.f1_score(labels, always, average="macro")})

        weights = np.random.default_rng(len(labels)).integers(0, 3, len(labels))
        table = pd.DataFrame({"label": [names[n] for n in labels], "predicted": [names[n] for n in guess]})
        columns = {f"p_{name}": column.astype(str) for name, column in zip(names, shares.T, strict=True)}
        predictions = Predictions("class", names, {}, table.assign(**columns))
        if not weights.any():
            weights[:], resampled = 1, expected
        else:
            rows = np.repeat(np.arange(len(labels)), weights)
            resampled = class_scores(labels[rows], guess[rows], shares[rows])
        weighted = by_weights(predictions, weights)
        wrong += differences(weighted, {name: resampled[name] for name in weighted})
    assert not wrong, f"{len(wrong)}, such as {wrong[:5]}"


# --- several classes


def label_sets(number: int) -> Iterator[tuple[np.ndarray, np.ndarray, list[int]]]:
    random = np.random.default_rng(2)
    for each in range(number):
        classes, rows = int(random.choice([2, 3, 5])), int(random.choice([1, 2, 5, 12, 40]))
        labels = (random.random((rows, classes)) < random.choice([0, 0.3, 0.7, 1], classes)).astype(np.float32)
        logits = random.normal(size=(rows, classes)).round(int(random.choice([0, 1, 6]))).astype(np.float32)
        yield logits - 50 * (random.random(classes) < 0.2).astype(np.float32), labels, cuts_of(random, rows, each)


def label_scores(true: np.ndarray, guess: np.ndarray) -> dict[str, float]:
    return {
        "exact_match": sk.accuracy_score(true, guess),
        "micro_f1": sk.f1_score(true, guess, average="micro", zero_division=0),
        "macro_f1": sk.f1_score(true, guess, average="macro", zero_division=0),
    }


def test_metrics_of_several_classes():
    wrong = []
    for logits, labels, cuts in label_sets(50 * TIMES):
        # of each share by itself, since the last digit of a probability depends on its place in memory, and with it what is equal
        shares = np.concatenate([torch.from_numpy(part).sigmoid().numpy() for part in np.split(logits, cuts)])
        true, guess = labels > 0.5, logits > 0
        expected = label_scores(true, guess) | {
            "matthews_correlation": sk.matthews_corrcoef(true.ravel(), guess.ravel()),
            "weighted_f1": sk.f1_score(true, guess, average="weighted", zero_division=0),
            "f_beta": sk.fbeta_score(true, guess, beta=2, average="macro", zero_division=0),
            "precision": sk.precision_score(true, guess, average="macro", zero_division=0),
            "recall": sk.recall_score(true, guess, average="macro", zero_division=0),
            "auroc": mean_where_defined(sk.roc_auc_score, true, shares),
            "average_precision": sk.average_precision_score(true, shares),
            "ranking_average_precision": sk.label_ranking_average_precision_score(true, shares),
            "hamming_distance": sk.hamming_loss(true, guess),
        }
        if math.isfinite(of_all := sk.roc_auc_score(true, shares)):
            assert of_all == pytest.approx(expected["auroc"]), "it is scikit-learn's, where that has one"
        wrong += differences(measured("classes", logits, labels, cuts), expected)

        names = [f"c{n}" for n in range(labels.shape[1])]
        cells = [["|".join(np.array(names)[row]) for row in rows] for rows in (true, guess)]
        predictions = Predictions("classes", names, {}, pd.DataFrame(dict(zip(("label", "predicted"), cells, strict=True))))
        weights = np.random.default_rng(len(labels)).integers(0, 3, len(labels)) + (len(labels) == 1)
        rows = np.repeat(np.arange(len(labels)), weights)
        if len(rows):
            wrong += differences(by_weights(predictions, weights), label_scores(true[rows], guess[rows]))
    assert not wrong, f"{len(wrong)}, such as {wrong[:5]}"


# --- a number


def number_sets(number: int) -> Iterator[tuple[np.ndarray, np.ndarray, list[int]]]:
    random = np.random.default_rng(3)
    for each in range(number):
        rows, offset = int(random.choice([1, 2, 5, 12, 40])), float(random.choice([0, 0, 1e3, 1e6]))
        true = random.normal(size=rows).round(int(random.choice([0, 1, 6]))) + offset
        guess = true + random.normal(0, random.choice([0, 0.1, 2]), rows)
        if random.random() < 0.2:
            true[:] = offset + 0.5  # constant, and a float in any precision
        if random.random() < 0.2:
            guess[:] = random.choice([0.5, offset + 0.5])
        yield guess.astype(np.float32)[:, None], true.astype(np.float32), cuts_of(random, rows, each)


def number_scores(true: np.ndarray, guess: np.ndarray) -> dict[str, float]:
    several = len(true) > 1
    return {
        "mae": sk.mean_absolute_error(true, guess),
        "rmse": sk.root_mean_squared_error(true, guess),
        "r2": sk.r2_score(true, guess),
        "pearson": np.corrcoef(true, guess)[0, 1] if several and np.ptp(true) and np.ptp(guess) else math.nan,
        "spearman": stats.spearmanr(true, guess).statistic if several else math.nan,
    }


def test_metrics_of_a_number():
    wrong = []
    for logits, labels, cuts in number_sets(60 * TIMES):
        true, guess = labels.astype(float), logits[:, 0].astype(float)
        expected = number_scores(true, guess) | {
            "kendall": stats.kendalltau(true, guess).statistic,
            "explained_variance": sk.explained_variance_score(true, guess),
            "mape": sk.mean_absolute_percentage_error(true, guess),
        }
        found = measured("number", logits, labels, cuts)
        del found["concordance"]  # neither has one; tests/unit/test_metrics.py compares it with a formula
        wrong += differences(found, expected)

        table = pd.DataFrame({"label": [f"{n:.9g}" for n in labels], "predicted": [f"{n:.9g}" for n in logits[:, 0]]})
        weights = np.random.default_rng(len(labels)).integers(0, 3, len(labels)) + (len(labels) == 1)
        rows = np.repeat(np.arange(len(labels)), weights)
        if len(rows) > 1 and np.ptp(true[rows]):
            wrong += differences(by_weights(Predictions("number", [], {}, table), weights), number_scores(true[rows], guess[rows]))
    assert not wrong, f"{len(wrong)}, such as {wrong[:5]}"
