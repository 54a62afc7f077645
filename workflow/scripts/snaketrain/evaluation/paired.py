"""Tests whether two configurations differ by more than chance: on the same examples, and over their seeds.

One seed each: McNemar's test for a metric that is right or wrong on each example, otherwise a paired bootstrap. They tell whether these
two models differ. Several seeds: an interval like Welch's, whose variance is the sum of the variance over the seeds and of the variance
over the examples, which all seeds share.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from scipy import special  # whose functions scipy.stats calls, and takes ten times as long to be imported

from snaketrain.evaluation.predictions import Metric, Predictions, metric_of, of_the_same_examples, right

ERROR_RATE = 0.05  # how often equal configurations may be called different
RIGHT_OR_WRONG = ("accuracy", "exact_match")
DRAWS, MOST_DRAWN = 1000, 200_000_000  # resamples, and examples in all resamples together
FEWEST = 8  # examples that can be tested: on fewer, equal models differ in the same direction on every one too often


@dataclass(frozen=True)
class Contender:
    """The runs of a configuration, one for each seed."""

    values: Sequence[float]  # of the metric, on the whole split
    predictions: Sequence[Predictions | None]


@dataclass(frozen=True)
class Difference:
    low: float  # of its interval, of 95 % unless `level` is lower
    high: float
    significant: bool
    test: str  # by which it was tested, in words
    level: float = ERROR_RATE
    error: float = 0.0  # standard error of the gap, of a test over seeds


@dataclass(frozen=True)
class Rows:
    """A column of values for each run: whether each example is right, or the metric on resampled examples."""

    values: np.ndarray
    examples: int
    right_or_wrong: bool

    def variance(self, values: np.ndarray) -> float:
        """Of the metric over samples of examples."""
        return (1 / self.examples if self.right_or_wrong else 1.0) * float(np.nanvar(values, axis=0, ddof=1).sum())


def level_of(look: int) -> float:
    """The error rate of a test over seeds, when the same two configurations were tested before with other seeds: 5 %, then 1.25 %, 0.56 %.

    At 5 % each, adding seeds until one is better calls one of two equal configurations better in 15 % of cases with 2 to 8 seeds. The first
    look keeps its 5 %, of which it uses 3 to 4.5, since the best on the development set must be the better one too. The later levels add
    little: their sum converges, and looks share most of their seeds. benchmarks/verdicts.py counts at most 5 % for all together.
    """
    return ERROR_RATE / look**2


def difference(metric: str, ours: Contender, theirs: Contender, level: float = ERROR_RATE) -> Difference | None:
    """Our metric minus theirs; None if nothing was saved that it can be tested with. `level`: of a test over seeds."""
    predictions = [*ours.predictions, *theirs.predictions]
    rows = rows_of(metric, [each for each in predictions if each is not None]) if None not in predictions else None
    if len(predictions) > 2:
        return over_seeds(ours.values, theirs.values, rows, level)
    if rows is None:
        return None
    return mcnemar_test(rows.values) if rows.right_or_wrong else bootstrap(rows.values, rows.examples)


def rows_of(metric: str, predictions: Sequence[Predictions]) -> Rows | None:
    """Whether each example is right, or, for a metric that is not right or wrong on each, its values on resampled examples."""
    metrics = [found for each in predictions if (found := metric_of(metric, each)) is not None]
    examples = len(predictions[0].table)
    if examples < FEWEST or len(metrics) < len(predictions) or not of_the_same_examples(predictions):
        return None
    if metric in RIGHT_OR_WRONG:
        each_right = np.stack([right(each, metric) for each in predictions], axis=1)
        if np.isin(each_right, (0, 1)).all():  # an own task may have shares, such as of a text's tokens
            return Rows(each_right, examples, right_or_wrong=True)
    return Rows(resampled(metrics, examples), examples, right_or_wrong=False)


def resampled(metrics: list[Metric], examples: int) -> np.ndarray:
    """A row for each resample; equal examples are resampled equally, so that rows are paired."""
    generator = np.random.default_rng(0)
    draws = max(200, min(DRAWS, MOST_DRAWN // examples))
    weights = (np.bincount(generator.integers(0, examples, examples), minlength=examples).astype(float) for _ in range(draws))
    return np.array([[metric(drawn) for metric in metrics] for drawn in weights])


def mcnemar_test(correct: np.ndarray) -> Difference:
    """The binomial test of the examples on which one is right and the other wrong. Its interval excludes 0 just where it is significant."""
    gaps = correct[:, 0] - correct[:, 1]
    ours, theirs = int((gaps > 0).sum()), int((gaps < 0).sum())
    p = min(1.0, 2 * float(special.bdtr(min(ours, theirs), ours + theirs, 0.5))) if ours + theirs else 1.0
    # Bonett and Price's interval: with one more example for each of the two it also covers 95 % where few differ, or one is right on all of them
    examples = len(gaps) + 2
    gap, differ = (ours - theirs) / examples, (ours + theirs + 2) / examples
    half = NormalDist().inv_cdf(1 - ERROR_RATE / 2) * math.sqrt((differ - gap**2) / examples)
    low, high, significant = max(-1.0, gap - half), min(1.0, gap + half), p < ERROR_RATE
    if not significant:  # the test is a little stricter
        low, high = min(low, 0.0), max(high, 0.0)
    shown = f"= {p:.2g}" if p >= 0.001 else "< 0.001"
    return Difference(low, high, significant, f"McNemar's test on the same {len(gaps):,} examples, p {shown}")


def bootstrap(drawn: np.ndarray, examples: int) -> Difference:
    # quantiles further out than 2.5 %, since resamples of few examples vary too little, and by as much as Student's t is wider than a normal
    # distribution (Hesterberg's expanded percentile interval)
    tail = NormalDist().cdf(-math.sqrt(examples / (examples - 1)) * student(1 - ERROR_RATE / 2, examples - 1))
    low, high = map(float, np.nanquantile(drawn[:, 0] - drawn[:, 1], [tail, 1 - tail]))
    return Difference(low, high, low > 0 or high < 0, "paired bootstrap over the same examples")


def over_seeds(ours: Sequence[float], theirs: Sequence[float], rows: Rows | None, level: float = ERROR_RATE) -> Difference:
    """An interval for the gap between the means; a configuration with a single run is taken to vary over seeds as much as the other."""
    gap = float(np.mean(ours) - np.mean(theirs))
    several = [values for values in (ours, theirs) if len(values) > 1]
    if len(several) == 2:
        parts = [(float(np.var(values, ddof=1)) / len(values), len(values) - 1) for values in several]
    else:
        parts = [(float(np.var(several[0], ddof=1)) * (1 / len(ours) + 1 / len(theirs)), len(several[0]) - 1)]
    test = "Welch's t over seeds alone"
    if rows is not None:
        parts.append((variance_over_examples(rows, len(ours)), len(rows.values) - 1))
        test = "Welch's t over seeds and the same examples"
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts) if variance else 1.0
    half = student(1 - level / 2, freedom) * math.sqrt(variance)
    # without any variance there is nothing to judge by, such as seeds that agree on a small test set, or make no difference
    return Difference(gap - half, gap + half, abs(gap) > half > 0, test, level, math.sqrt(variance))


def student(share: float, degrees: float) -> float:
    """The quantile of Student's t."""
    return float(special.stdtrit(degrees, share))


def variance_over_examples(rows: Rows, ours: int) -> float:
    """The variance of the gap over samples of examples, without the interaction with the seeds, which the variance over seeds contains."""
    groups = [rows.values[:, :ours], rows.values[:, ours:]]
    total = rows.variance((groups[0].mean(1) - groups[1].mean(1))[:, None])
    of_seeds = [
        rows.variance(group - group.mean(1, keepdims=True)) / (group.shape[1] - 1) if group.shape[1] > 1 else None for group in groups
    ]
    known = [part for part in of_seeds if part is not None]
    interaction: float = sum((known[0] if part is None else part) / group.shape[1] for part, group in zip(of_seeds, groups, strict=True))
    return max(0.0, total - interaction)
