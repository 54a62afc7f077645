"""Early stopping: gives up when the selection metric has not become better for a number of evaluations."""

import math


class Patience:
    def __init__(self, metric: str, mode: str, patience: int | None, min_change: float = 0.0):
        self.metric, self.sign = metric, 1 if mode == "max" else -1
        self.patience, self.min_change = patience, min_change  # no patience: never gives up
        self.best, self.since = -math.inf, 0

    def tell(self, metrics: dict[str, float]) -> None:
        if self.patience is None:
            return
        if self.metric not in metrics:
            raise SystemExit(
                f"select.metric: the task logs no `{self.metric}`, which train.early_stopping needs. It logs: {', '.join(metrics)}."
            )
        value = self.sign * metrics[self.metric]
        if value > self.best + self.min_change:  # never true of a NaN
            self.best, self.since = value, 0
        else:
            self.since += 1

    @property
    def exhausted(self) -> bool:
        return self.patience is not None and self.since >= self.patience

    def state(self) -> dict[str, float]:
        return {"best": self.best, "since": self.since}

    def load_state(self, state: dict[str, float]) -> None:
        self.best, self.since = state["best"], int(state["since"])
