"""Metrics of predicted numbers, from the rows of all examples: in double precision, in two passes, by scikit-learn and scipy.

From sums, one pass would lose a digit for each by which the mean exceeds the deviation. The libraries are imported where they are used,
since each training imports this file.
"""

import warnings

import numpy as np
from torch import Tensor

from snaketrain.tasks.metrics import OfRows


class OfNumbers(OfRows):
    higher_is_better = True

    def compute(self, *values: Tensor) -> float:
        predicted, true = (value.double().numpy() for value in values)
        with warnings.catch_warnings():  # of what is undefined, such as the correlation of a constant, which becomes NaN
            warnings.simplefilter("ignore")
            return float(self.score(true, predicted))

    def score(self, true: np.ndarray, predicted: np.ndarray) -> float:
        raise NotImplementedError


class Pearson(OfNumbers):
    def score(self, true: np.ndarray, predicted: np.ndarray) -> float:
        from scipy.stats import pearsonr

        return float(pearsonr(true, predicted).statistic) if len(true) > 1 else np.nan


class Spearman(OfNumbers):
    def score(self, true: np.ndarray, predicted: np.ndarray) -> float:
        from scipy.stats import spearmanr

        return float(spearmanr(true, predicted).statistic)


class Kendall(OfNumbers):
    def score(self, true: np.ndarray, predicted: np.ndarray) -> float:
        from scipy.stats import kendalltau

        return float(kendalltau(true, predicted).statistic)


class Concordance(OfNumbers):
    """Lin's coefficient, of the unbiased variances."""

    def score(self, true: np.ndarray, predicted: np.ndarray) -> float:
        if len(true) < 2:
            return np.nan
        (of_true, of_both), (_, of_predicted) = np.cov(true, predicted)
        return float(2 * of_both / (of_true + of_predicted + (true.mean() - predicted.mean()) ** 2))


class R2(OfNumbers):
    def score(self, true: np.ndarray, predicted: np.ndarray) -> float:
        from sklearn.metrics import r2_score

        return float(r2_score(true - true[0], predicted - true[0]))  # so that the deviations of a constant are 0, not rounding errors


class ExplainedVariance(OfNumbers):
    def score(self, true: np.ndarray, predicted: np.ndarray) -> float:
        from sklearn.metrics import explained_variance_score

        return float(explained_variance_score(true - true[0], predicted - true[0]))


class Rmse(OfNumbers):
    higher_is_better = False

    def score(self, true: np.ndarray, predicted: np.ndarray) -> float:
        return float(np.sqrt(np.square(true - predicted).mean()))


class Mape(OfNumbers):
    higher_is_better = False

    def score(self, true: np.ndarray, predicted: np.ndarray) -> float:
        from sklearn.metrics import mean_absolute_percentage_error

        return float(mean_absolute_percentage_error(true, predicted))
