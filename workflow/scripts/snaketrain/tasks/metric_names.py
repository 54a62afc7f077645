"""Short names of metrics, by what is predicted: the classes behind them, and which direction is better.

Imports no torch: the names are checked before any job starts.
"""

from collections.abc import Iterable
from typing import NamedTuple

from snaketrain.config.errors import nearest
from snaketrain.runtime.json_types import JsonObject

CLASSIFICATION, OURS, NUMBERS = "torchmetrics.classification", "snaketrain.tasks.classification_metrics", "snaketrain.tasks.number_metrics"


class Known(NamedTuple):
    use: str  # empty: defined for two classes only
    mode: str = "max"
    arguments: JsonObject = {}  # noqa: RUF012  # never changed
    required: tuple[str, ...] = ()  # arguments that have no default
    of_two_classes: str = ""  # instead of `use`, unless an `average` over the classes is asked for: the metric of the second class

    def use_for(self, classes: int | None, arguments: JsonObject, where: str) -> str:
        if self.of_two_classes and classes == 2 and "average" not in arguments:
            return self.of_two_classes
        if not self.use:
            raise SystemExit(f"{where}: is the metric of the second of two classes, and there are {classes}. Name macro_f1 or weighted_f1.")
        return self.use


def _multiclass(name: str, mode: str = "max", of_two: str = "", required: tuple[str, ...] = (), **arguments: object) -> Known:
    return Known(f"{CLASSIFICATION}.Multiclass{name}", mode, arguments, required, of_two and f"{CLASSIFICATION}.Binary{of_two}")


def _multilabel(name: str, mode: str = "max", required: tuple[str, ...] = (), **arguments: object) -> Known:
    return Known(f"{CLASSIFICATION}.Multilabel{name}", mode, arguments, required)


KNOWN: dict[str, dict[str, Known]] = {  # by `problem_type` of the label kind
    "single_label_classification": {
        "matthews_correlation": Known(f"{OURS}.MulticlassMatthews"),
        "f1": Known("", of_two_classes=f"{CLASSIFICATION}.BinaryF1Score"),
        "weighted_f1": _multiclass("F1Score", average="weighted"),
        "f_beta": _multiclass("FBetaScore", of_two="FBetaScore", required=("beta",)),
        "precision": _multiclass("Precision", of_two="Precision"),
        "recall": _multiclass("Recall", of_two="Recall"),
        "balanced_accuracy": Known(f"{OURS}.BalancedAccuracy"),
        "top_k_accuracy": Known(f"{OURS}.TopKAccuracy"),
        "auroc": Known(f"{OURS}.MulticlassAuroc", of_two_classes=f"{OURS}.BinaryAuroc"),
        "average_precision": Known(f"{OURS}.AveragePrecisionOfClasses", of_two_classes=f"{CLASSIFICATION}.BinaryAveragePrecision"),
        "cohen_kappa": _multiclass("CohenKappa"),
        "quadratic_weighted_kappa": _multiclass("CohenKappa", weights="quadratic"),
        "calibration_error": _multiclass("CalibrationError", "min"),
    },
    "multi_label_classification": {
        "matthews_correlation": Known(f"{OURS}.MultilabelMatthews"),
        "weighted_f1": _multilabel("F1Score", average="weighted"),
        "f_beta": _multilabel("FBetaScore", required=("beta",)),
        "precision": _multilabel("Precision"),
        "recall": _multilabel("Recall"),
        "auroc": Known(f"{OURS}.MultilabelAuroc"),
        "average_precision": _multilabel("AveragePrecision"),
        "ranking_average_precision": _multilabel("RankingAveragePrecision"),
        "hamming_distance": _multilabel("HammingDistance", "min"),
    },
    "regression": {
        "spearman": Known(f"{NUMBERS}.Spearman"),
        "kendall": Known(f"{NUMBERS}.Kendall"),
        "concordance": Known(f"{NUMBERS}.Concordance"),
        "explained_variance": Known(f"{NUMBERS}.ExplainedVariance"),
        "rmse": Known(f"{NUMBERS}.Rmse", "min"),
        "mape": Known(f"{NUMBERS}.Mape", "min"),
    },
}


def known_metric(use: str, problem_type: str, where: str) -> Known:
    """What a short name stands for."""
    names = KNOWN.get(problem_type, {})
    if use not in names:
        raise SystemExit(f"{where}.use: there is no metric `{use}` here{nearest(use, names)} {short_names(names)}")
    return names[use]


def short_names(names: Iterable[str]) -> str:
    return (
        f"Short names: {', '.join(names) or 'none for this data'}. Or name a class of torchmetrics, `package.module.Class`, "
        "or your own, `path/to/file.py:Name`."
    )


def is_short(use: str) -> bool:
    return "." not in use and ":" not in use
