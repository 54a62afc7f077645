"""The best value so far of the metric that checkpoints are selected by."""

import math


class BestMetric:
    def __init__(self, metric: str, mode: str):
        self.metric, self.sign = metric, 1 if mode == "max" else -1
        self.best = -math.inf

    def improved(self, metrics: dict[str, float]) -> bool:
        value = self.sign * metrics.get(self.metric, math.nan)
        if not value > self.best:  # nor is NaN
            return False
        self.best = value
        return True

    def state(self) -> dict[str, float]:
        return {"best": self.best}

    def load_state(self, state: dict[str, float]) -> None:
        self.best = state["best"]
