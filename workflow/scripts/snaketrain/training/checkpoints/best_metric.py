"""The metric by which checkpoints are selected, and its best value so far."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Selection:
    """The metric by which checkpoints are ranked; `mode` is max or min."""

    metric: str
    mode: str

    @property
    def sign(self) -> int:
        """What makes more of the metric better."""
        return 1 if self.mode == "max" else -1


BY_LOSS = Selection("loss", "min")


class BestMetric:
    def __init__(self, selection: Selection):
        self.metric, self.sign = selection.metric, selection.sign
        self.best = -math.inf

    def improved(self, metrics: dict[str, float]) -> bool:
        value = self.sign * metrics.get(self.metric, math.nan)
        if not (math.isfinite(value) and value > self.best):  # nothing would be better than an infinity
            return False
        self.best = value
        return True

    def replay(self, evaluations: Iterable[dict[str, float]]) -> None:
        """Instead of what a checkpoint remembers, which may be about another metric."""
        self.best = -math.inf
        for metrics in evaluations:
            self.improved(metrics)

    def state_dict(self) -> dict[str, float]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.best = state["best"]
