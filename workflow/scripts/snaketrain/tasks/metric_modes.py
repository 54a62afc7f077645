"""Whether higher or lower values of a metric are better. The metric declares it: `select.mode` must not contradict it.

Imports no torch: it is checked before any job starts, and again by the training, which knows all metrics.
"""

import math
from collections.abc import Mapping

from snaketrain.config.errors import nearest

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
