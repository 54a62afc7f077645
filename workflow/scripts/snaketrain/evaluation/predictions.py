"""The predictions that an evaluation saved, and their metrics as functions of the examples' weights, so that a bootstrap can resample them."""

import importlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from snaketrain.labels import label_kinds
from snaketrain.labels.classes import in_cell
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Metric = Callable[[np.ndarray], float]  # of the examples' weights


@dataclass(frozen=True)
class Predictions:
    """The labelled examples of a split, in their order."""

    form: str | None  # what the columns contain: `class`, `classes` or `number`; None: the task's own columns
    classes: list[str]
    metrics: dict[str, float]  # as the evaluation computed them
    table: pd.DataFrame  # of text

    def numbers(self, column: str) -> pd.Series:
        return pd.to_numeric(self.table[column], errors="coerce")


def read_predictions(folder: Path, split: str, results: JsonObject) -> Predictions | None:
    """The predictions in the folder of an evaluation. None if the task predicts nothing for single examples, or the split has no labels."""
    path = Path(folder) / f"{split}_predictions.csv"
    if not results["metrics"] or not path.is_file():
        return None
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    form = form_of(results)
    if form in ("class", "number"):  # of several classes, an empty cell is a label too
        table = table[table["label"] != ""]
    if len(table) != results["examples"]:
        return None
    return Predictions(form, list(results.get("classes", {})), results["metrics"], table.reset_index(drop=True))


def form_of(results: JsonObject) -> str | None:
    """Derived from what the label kind's report contains, since a user's own label kind has another name."""
    if results["kind"] is None:
        return None
    if of_kind(results["kind"]):
        return str(results["kind"])
    return "class" if results.keys() & {"confusion", "confused"} else "classes" if "classes" in results else "number"


def of_kind(kind: str | None) -> Mapping[str, Callable[[pd.DataFrame], Metric]]:
    """The metrics that a label kind's report has as functions of weights itself."""
    found = label_kinds().get(kind or "")
    return found.report.of_weights if found else {}


def of_the_same_examples(several: Sequence[Predictions]) -> bool:
    """Whether their rows belong together: texts and labels are equal, as far as they were saved."""
    first, *others = (each.table for each in several)
    columns = [column for column in ("text", "text_pair", "label") if column in first]
    return all(
        len(other) == len(first) and all(column in other and other[column].equals(first[column]) for column in columns) for other in others
    )


def metric_of(name: str, predictions: Predictions) -> Metric | None:
    """None if it cannot be computed from the saved predictions, or differs from the reported value: a task may define another metric of this name."""
    make, of_table = METRICS.get((predictions.form, name)), of_kind(predictions.form).get(name)
    metric = make(predictions) if make else of_table(predictions.table) if of_table else own_column(name, predictions)
    reported = predictions.metrics.get(name)
    if metric is None or reported is None:
        return None
    return metric if math.isclose(metric(np.ones(len(predictions.table))), reported, rel_tol=1e-3, abs_tol=1e-4) else None


def mean(values: np.ndarray) -> Metric:
    return lambda weights: float(values @ weights / weights.sum())


# of language models: the column whose mean it is, and that by which texts are weighted
OF_TEXTS = {
    "perplexity": ("loss", "tokens"),
    "word_perplexity": ("loss_per_word", "words"),
    "byte_perplexity": ("loss_per_byte", "bytes"),
    "bits_per_byte": ("bits_per_byte", "bytes"),
}


def own_column(name: str, predictions: Predictions) -> Metric | None:
    """The mean of the column that is named after the metric; for language models, weighted by the `tokens` of each text."""
    column, size = OF_TEXTS.get(name, (name, "tokens"))
    if column not in predictions.table:
        return None
    values = predictions.numbers(column).to_numpy(float)
    sizes = predictions.numbers(size).to_numpy(float) if size in predictions.table else np.ones(len(values))
    values = np.where(sizes > 0, values, 0.0)  # a text of one token has none to predict, and no loss
    average: Metric = lambda weights: float(values @ (weights * sizes) / (weights @ sizes))  # noqa: E731
    return (lambda weights: math.exp(average(weights))) if name.endswith("perplexity") else average


# --- of one class for each example


def right(predictions: Predictions, metric: str = "") -> np.ndarray:
    """By the column that is named after the metric, where the task has one: it may call more answers right than equal ones."""
    if metric in predictions.table:
        return predictions.numbers(metric).to_numpy(float)
    return (predictions.table["label"] == predictions.table["predicted"]).to_numpy(float)


def accuracy(predictions: Predictions) -> Metric:
    return mean(right(predictions))


def by_number(predictions: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """The true and the predicted classes."""
    number = {name: index for index, name in enumerate(predictions.classes)}
    label, guess = (predictions.table[column].map(number).to_numpy(int) for column in ("label", "predicted"))
    return label, guess


def class_loss(predictions: Predictions) -> Metric | None:
    columns = [f"p_{name}" for name in predictions.classes]
    if "label_probability" in predictions.table:  # of too many classes for a column each
        found = predictions.numbers("label_probability").to_numpy(float)
    elif predictions.classes and set(columns) <= set(predictions.table):
        label, _ = by_number(predictions)
        found = predictions.table[columns].to_numpy(float)[np.arange(len(label)), label]
    else:
        return None
    return mean(-np.log(np.clip(found, 5e-7, None)))  # six digits were saved


def macro_f1(predictions: Predictions) -> Metric:
    (label, guess), classes, hits = by_number(predictions), len(predictions.classes), right(predictions)

    def metric(weights: np.ndarray) -> float:
        hit, true = np.bincount(label, weights * hits, classes), np.bincount(label, weights, classes)
        predicted = np.bincount(guess, weights, classes)
        return float(f1(hit, predicted, true)[predicted + true > 0].mean())  # of the classes that occur or are predicted

    return metric


def f1(hits: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """0 for a class that neither occurs nor is predicted."""
    return 2 * hits / np.maximum(predicted + true, 1)


def scikit(score: str) -> Callable[..., float]:
    """Imported where it is used: most verdicts are about accuracy, and the import takes longer than those."""
    return getattr(importlib.import_module("sklearn.metrics"), score)


def by_scikit(score: str, **options: object) -> Callable[[Predictions], Metric]:
    """A score of the predicted classes or numbers."""

    def make(predictions: Predictions) -> Metric:
        both = labels_and_guesses(predictions) if predictions.form == "number" else by_number(predictions)
        return weighted(partial(scikit(score), **options), *both)

    return make


def weighted(score: Callable[..., float], label: np.ndarray, guess: np.ndarray) -> Metric:
    def metric(weights: np.ndarray) -> float:
        with warnings.catch_warnings():  # of classes that a resample lacks
            warnings.simplefilter("ignore")
            return float(score(label, guess, sample_weight=weights))

    return metric


def quadratic_weighted_kappa(predictions: Predictions) -> Metric:
    """With a class that neither occurs nor is predicted, those beside it are still two apart."""
    return by_scikit("cohen_kappa_score", weights="quadratic", labels=range(len(predictions.classes)))(predictions)


def f1_of_the_second_class(predictions: Predictions) -> Metric | None:
    return by_scikit("f1_score", zero_division=0)(predictions) if len(predictions.classes) == 2 else None


def of_the_second_class(score: str) -> Callable[[Predictions], Metric | None]:
    """A score of the second class's probability, if there are two classes."""

    def make(predictions: Predictions) -> Metric | None:
        if len(predictions.classes) != 2:
            return None
        second = predictions.classes[1]
        label, guess = (predictions.table["label"] == second).to_numpy(int), predictions.numbers(f"p_{second}").to_numpy(float)

        def metric(weights: np.ndarray) -> float:
            drawn = weights > 0
            return weighted(scikit(score), label[drawn], guess[drawn])(weights[drawn])

        return metric

    return make


# --- of several classes


def several_macro_f1(predictions: Predictions) -> Metric:
    true, predicted = (named(predictions, column) for column in ("label", "predicted"))
    hits = true * predicted
    return lambda weights: float(f1(weights @ hits, weights @ predicted, weights @ true).mean())


def micro_f1(predictions: Predictions) -> Metric:
    true, predicted = (named(predictions, column) for column in ("label", "predicted"))
    hits, both = (true * predicted).sum(1), (true + predicted).sum(1)
    return lambda weights: float(2 * (weights @ hits) / max(weights @ both, 1))


def named(predictions: Predictions, column: str) -> "csr_array":
    """1 where a class is among those in a cell: a row for each example, a column for each class."""
    from scipy.sparse import csr_array

    number = {name: index for index, name in enumerate(predictions.classes)}
    cells = [in_cell(cell, predictions.classes) & number.keys() for cell in predictions.table[column]]
    columns = [number[name] for cell in cells for name in cell]
    rows = np.repeat(np.arange(len(cells)), list(map(len, cells)))
    return csr_array((np.ones(len(columns)), (rows, columns)), shape=(len(cells), len(number)))


# --- of numbers


def labels_and_guesses(predictions: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """The nine digits that were saved name one number of single precision, as which the evaluation measured it."""
    labels, guesses = (predictions.numbers(column).to_numpy(np.float32).astype(float) for column in ("label", "predicted"))
    return labels, guesses


def spearman(predictions: Predictions) -> Metric:
    from scipy.stats import spearmanr

    labels, guesses = labels_and_guesses(predictions)

    def metric(weights: np.ndarray) -> float:
        rows = np.repeat(np.arange(len(labels)), weights.astype(int))  # ranks have no weighted form
        return float(spearmanr(labels[rows], guesses[rows]).statistic)

    return metric


def pearson(predictions: Predictions) -> Metric:
    values = np.stack(labels_and_guesses(predictions))

    def metric(weights: np.ndarray) -> float:
        (x, xy), (_, y) = np.cov(values, aweights=weights, ddof=0)
        return float(xy / math.sqrt(x * y)) if x * y > 0 else math.nan

    return metric


def r2(predictions: Predictions) -> Metric:
    labels, guesses = labels_and_guesses(predictions)
    return lambda weights: float(scikit("r2_score")(labels - labels[0], guesses - labels[0], sample_weight=weights))


# by the form of the predictions and the name of the metric
METRICS: dict[tuple[str | None, str], Callable[[Predictions], Metric | None]] = {
    ("class", "accuracy"): accuracy,
    ("class", "macro_f1"): macro_f1,
    ("class", "loss"): class_loss,
    ("class", "balanced_accuracy"): by_scikit("balanced_accuracy_score"),
    ("class", "matthews_correlation"): by_scikit("matthews_corrcoef"),
    ("class", "f1"): f1_of_the_second_class,
    ("class", "weighted_f1"): by_scikit("f1_score", average="weighted", zero_division=0),
    ("class", "cohen_kappa"): by_scikit("cohen_kappa_score"),
    ("class", "quadratic_weighted_kappa"): quadratic_weighted_kappa,
    ("class", "auroc"): of_the_second_class("roc_auc_score"),
    ("class", "average_precision"): of_the_second_class("average_precision_score"),
    ("classes", "exact_match"): accuracy,
    ("classes", "macro_f1"): several_macro_f1,
    ("classes", "micro_f1"): micro_f1,
    ("number", "loss"): by_scikit("mean_squared_error"),
    ("number", "mae"): by_scikit("mean_absolute_error"),
    ("number", "rmse"): by_scikit("root_mean_squared_error"),
    ("number", "pearson"): pearson,
    ("number", "spearman"): spearman,
    ("number", "r2"): r2,
}
