"""The metric by which checkpoints are selected, and its best value so far."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


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
        self.outdated = False  # whether a checkpoint remembers the best value of another metric, so that all evaluations are replayed

    def improved(self, metrics: dict[str, float]) -> bool:
        value = self.sign * metrics.get(self.metric, math.nan)
        if not (math.isfinite(value) and value > self.best):  # nothing would be better than an infinity
            return False
        self.best = value
        return True

    def replay(self, evaluations: Iterable[dict[str, float]]) -> None:
        """Instead of what a checkpoint remembers, which may be about another metric."""
        self.best, self.outdated = -math.inf, False
        for metrics in evaluations:
            self.improved(metrics)

    def state_dict(self) -> dict[str, object]:
        return {"best": self.best, "metric": self.metric, "sign": self.sign}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.outdated = is_outdated(state, self.metric, self.sign)
        self.best = -math.inf if self.outdated else state["best"]


def is_outdated(state: Mapping[str, Any], metric: str, sign: int) -> bool:
    """Whether a checkpoint remembers what another selection has decided."""
    return (state.get("metric"), state.get("sign")) != (metric, sign)
