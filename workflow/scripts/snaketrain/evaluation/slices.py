"""The metric of a run by the values of columns of its data, with intervals that hold for all of them together."""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from snaketrain.config.schema.data import SLICE
from snaketrain.evaluation.predictions import Metric, Predictions, metric_of, right
from snaketrain.labels.base import Report

FEWEST, MOST = 20, 40  # examples of a value; values of a column, the most frequent ones
DRAWS = 300  # resamples, from which a standard error is taken


@dataclass(frozen=True)
class Slice:
    column: str
    value: str
    examples: int
    metric: float
    low: float
    high: float
    apart: str  # "above" or "below" if the metric of all examples is not in the interval


def slices_of(predictions: Predictions, metric: str, confidence: float) -> list[Slice]:
    """Of values with enough examples. With n of them, each interval is of 1 - (1 - confidence) / n (Bonferroni)."""
    measure, table = metric_of(metric, predictions), predictions.table
    columns = [name for name in map(str, table.columns) if name.startswith(SLICE)]
    if measure is None:
        if columns:
            print(f"data.slices: not shown, since {metric} cannot be computed from the predictions that were saved.", flush=True)
        return []
    frequent = {column: table[column].value_counts().head(MOST) for column in columns}
    found = [(column, value) for column, counts in frequent.items() for value, count in counts.items() if count >= FEWEST]
    of_each, whole = 1 - (1 - confidence) / max(1, len(found)), measure(np.ones(len(table)))
    slices = []
    for column, value in found:
        rows = np.flatnonzero(table[column] == value)
        chosen = np.bincount(rows, minlength=len(table)).astype(float)
        if metric == "accuracy" and predictions.form == "class":
            correct = int(right(predictions)[rows].sum())
            low, high = Report.wilson_interval(correct, len(rows), of_each)
        else:
            low, high = resampled_interval(measure, rows, len(table), of_each)
        apart = "below" if high < whole else "above" if low > whole else ""
        slices.append(Slice(column.removeprefix(SLICE), str(value) or "(empty)", len(rows), measure(chosen), low, high, apart))
    return slices


def resampled_interval(measure: Metric, rows: np.ndarray, examples: int, confidence: float) -> tuple[float, float]:
    """By the standard error over resamples of these rows: quantiles so far out would need thousands of them."""
    generator, chosen = np.random.default_rng(0), np.bincount(rows, minlength=examples).astype(float)
    drawn = [measure(np.bincount(generator.choice(rows, len(rows)), minlength=examples).astype(float)) for _ in range(DRAWS)]
    half = NormalDist().inv_cdf((1 + confidence) / 2) * float(np.nanstd(drawn, ddof=1))
    return measure(chosen) - half, measure(chosen) + half
