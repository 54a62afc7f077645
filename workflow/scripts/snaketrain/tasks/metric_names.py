"""Short names of metrics, by what is predicted: the classes behind them, and which direction is better.

Imports no torch: the names are checked before any job starts.
"""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from snaketrain.config.errors import nearest
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    from snaketrain.config.schema.tasks import ModuleSettings

# --- Whether higher or lower values of a metric are better. The metric declares it: `select.mode` must not contradict it. Checked before any
# job starts, and again by the training, which knows all metrics.

Modes = dict[str, str | None]  # `max` or `min` by metric; None: not declared
MODES = {True: "max", False: "min", None: None}  # by `higher_is_better`
BETTER = {"max": "higher", "min": "lower"}


def modes_of(metrics: object, label_kind: str | None, use: str) -> Modes:
    """The `metrics` of a task, which may be given by `data.label_kind`."""
    if isinstance(metrics, Mapping) and label_kind in metrics and isinstance(metrics[label_kind], Mapping):
        metrics = metrics[label_kind]
    if not isinstance(metrics, Mapping) or not all(mode in ("max", "min", None) for mode in metrics.values()):
        raise SystemExit(
            f"train.task.use: the `metrics` of {use} must declare whether higher or lower is better, such as "
            "metrics = {'loss': 'min', 'accuracy': 'max'}."
        )
    return dict(metrics)


def mode_of(metric: str, metrics: Modes, given: str | None, where: str = "") -> str:
    """The mode by which checkpoints are ranked; `given` is `select.mode`."""
    if metric not in metrics:
        raise SystemExit(
            f"select.metric: the task logs no '{metric}'{where}{nearest(metric, list(metrics))} It logs: {', '.join(metrics)}. Name one of them, "
            "or add a metric to train.metrics."
        )
    own = metrics[metric]
    if own and given and own != given:
        raise SystemExit(f"select.mode: is {given}, but for '{metric}' {BETTER[own]} is better. Remove it: the metric decides.")
    if not (own or given):
        raise SystemExit(
            f"select.mode: is missing, and '{metric}' does not declare whether higher or lower is better. Set it to max or min."
        )
    return own or given or ""


def rank_key(value: float | None, loss: float | None, mode: str) -> tuple[float, float]:
    """A key that sorts the best first: checkpoints, runs of a search and rows of the comparison. The loss decides between equal values."""
    sign = -1 if mode == "max" else 1
    ranked, of_loss = (number if number is not None and math.isfinite(number) else math.inf for number in (value, loss))
    return (sign * ranked if math.isfinite(ranked) else math.inf), of_loss


def declared_mode(where: str, own: str | None, given: str | None) -> str | None:
    """The mode of a metric that the configuration names: what its class says, or else its setting `mode`."""
    if own and given and own != given:
        raise SystemExit(f"{where}.mode: is {given}, but its class says that {BETTER[own]} is better. Remove it: the class decides.")
    return own or given


def modes_of_module(settings: "ModuleSettings", own: Modes) -> Modes:
    """Whether higher or lower is better, of everything that is logged; `own`: as the metrics' classes say. Losses are minimised."""
    return dict.fromkeys(settings.logged, "min") | {
        name: declared_mode(f"train.task.arguments.metrics.{name}", own[name], metric.mode) for name, metric in settings.metrics.items()
    }


CLASSIFICATION, OURS, NUMBERS = "torchmetrics.classification", "snaketrain.tasks.classification_metrics", "snaketrain.tasks.metrics"


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


def _torchmetrics(name: str, mode: str = "max", of_two: str = "", required: tuple[str, ...] = (), **arguments: object) -> Known:
    return Known(f"{CLASSIFICATION}.{name}", mode, arguments, required, of_two and f"{CLASSIFICATION}.{of_two}")


KNOWN: dict[str, dict[str, Known]] = {  # by `problem_type` of the label kind
    "single_label_classification": {
        "matthews_correlation": Known(f"{OURS}.MulticlassMatthews"),
        "f1": Known("", of_two_classes=f"{CLASSIFICATION}.BinaryF1Score"),
        "weighted_f1": _torchmetrics("MulticlassF1Score", average="weighted"),
        "f_beta": _torchmetrics("MulticlassFBetaScore", of_two="BinaryFBetaScore", required=("beta",)),
        "precision": _torchmetrics("MulticlassPrecision", of_two="BinaryPrecision"),
        "recall": _torchmetrics("MulticlassRecall", of_two="BinaryRecall"),
        "balanced_accuracy": Known(f"{OURS}.BalancedAccuracy"),
        "top_k_accuracy": Known(f"{OURS}.TopKAccuracy"),
        "auroc": Known(f"{OURS}.MulticlassAuroc", of_two_classes=f"{OURS}.BinaryAuroc"),
        "average_precision": Known(f"{OURS}.AveragePrecisionOfClasses", of_two_classes=f"{CLASSIFICATION}.BinaryAveragePrecision"),
        "cohen_kappa": _torchmetrics("MulticlassCohenKappa"),
        "quadratic_weighted_kappa": _torchmetrics("MulticlassCohenKappa", weights="quadratic"),
        "calibration_error": _torchmetrics("MulticlassCalibrationError", "min"),
    },
    "multi_label_classification": {
        "matthews_correlation": Known(f"{OURS}.MultilabelMatthews"),
        "weighted_f1": _torchmetrics("MultilabelF1Score", average="weighted"),
        "f_beta": _torchmetrics("MultilabelFBetaScore", required=("beta",)),
        "precision": _torchmetrics("MultilabelPrecision"),
        "recall": _torchmetrics("MultilabelRecall"),
        "auroc": Known(f"{OURS}.MultilabelAuroc"),
        "average_precision": _torchmetrics("MultilabelAveragePrecision"),
        "ranking_average_precision": _torchmetrics("MultilabelRankingAveragePrecision"),
        "hamming_distance": _torchmetrics("MultilabelHammingDistance", "min"),
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
