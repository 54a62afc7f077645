"""Metrics by the values of a column, and how often their intervals miss."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from snaketrain.evaluation.predictions import Predictions
from snaketrain.evaluation.slices import slices_of


def of_classes(sources: list[str], right: np.ndarray) -> Predictions:
    labels = np.where(np.arange(len(right)) % 2, "a", "b")
    predicted = np.where(right, labels, np.where(labels == "a", "b", "a"))
    table = pd.DataFrame(
        {"text": "t", "slice:source": sources, "label": labels, "predicted": predicted, "loss": np.where(right, "0.5", "2")}
    )
    loss = float(np.where(right, 0.5, 2).mean())
    return Predictions("class", ["a", "b"], {"accuracy": float(right.mean()), "loss": loss}, table)


def test_accuracy_by_value():
    sources = ["web"] * 300 + ["book"] * 100 + [""] * 40 + ["rare"] * 19
    right = np.r_[np.arange(300) % 10 > 0, np.arange(100) % 2 > 0, np.ones(40), np.zeros(19)].astype(bool)
    web, book, empty = slices_of(of_classes(sources, right), "accuracy", 0.95)
    assert [(each.column, each.value, each.examples, each.metric) for each in (web, book, empty)] == [
        ("source", "web", 300, 0.9),
        ("source", "book", 100, 0.5),
        ("source", "(empty)", 40, 1.0),
    ]
    assert (web.apart, book.apart, empty.apart) == ("above", "below", "above") and empty.low < 1 == empty.high


def test_other_metrics_are_resampled(capsys):
    right = np.arange(400) % 4 > 0
    predictions = replace(of_classes(["one"] * 200 + ["two"] * 200, right), form=None)
    first, second = slices_of(predictions, "loss", 0.95)
    assert first.metric == second.metric == pytest.approx(0.875) and first.apart == ""
    error = 1.5 * np.sqrt(0.25 * 0.75 / 200) * 2.2414  # of the 97.5 % interval: two slices
    assert (first.high - first.low) / 2 == pytest.approx(error, rel=0.15)
    assert slices_of(predictions, "no_such_metric", 0.95) == []
    assert capsys.readouterr().out.startswith("data.slices: not shown, since no_such_metric cannot be computed")


def test_equal_slices_are_seldom_called_apart():
    """Ten slices of a model that is equally good on all: some are called apart in at most 5 % of cases, up to chance."""
    generator = np.random.default_rng(0)
    sources = [str(number % 10) for number in range(1000)]
    wrong = sum(
        any(each.apart for each in slices_of(of_classes(sources, generator.random(1000) < 0.8), "accuracy", 0.95)) for _ in range(200)
    )
    assert 0 < wrong <= 12, "5 of 100 are expected"
