"""The metric by which checkpoints are selected, and its best value so far."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Selection:
    """The metric by which checkpoints are ranked; `mode` is max or min."""

    metric: str
    mode: str


BY_LOSS = Selection("loss", "min")


class BestMetric:
    def __init__(self, metric: str, mode: str):
        self.metric, self.sign = metric, 1 if mode == "max" else -1
        self.best = -math.inf

    def improved(self, metrics: dict[str, float]) -> bool:
        value = self.sign * metrics.get(self.metric, math.nan)
        if not value > self.best:  # also not a NaN
            return False
        self.best = value
        return True

    def state(self) -> dict[str, float]:
        return {"best": self.best}

    def load_state(self, state: dict[str, float]) -> None:
        self.best = state["best"]
