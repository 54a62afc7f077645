"""Ends a training when the selection metric has not improved for a number of evaluations."""

import math
from collections.abc import Iterable

from snaketrain.training.callbacks.base import Callback
from snaketrain.training.checkpoints.best_metric import Selection
from snaketrain.training.state import TrainState


class EarlyStopping(Callback):
    def __init__(self, selection: Selection, patience: int, min_change: float = 0.0):
        self.metric, self.sign = selection.metric, selection.sign
        self.patience, self.min_change = patience, min_change
        self.best, self.since = -math.inf, 0

    def on_train_start(self, state: TrainState) -> None:
        self._decide(state)  # the last attempt may have been killed after its last evaluation

    def on_evaluation(self, state: TrainState, metrics: dict[str, float]) -> None:
        if not state.step:
            return  # the initial weights
        if self.metric not in metrics:
            raise SystemExit(
                f"select.metric: the task logs no `{self.metric}`, which train.early_stopping needs. It logs: {', '.join(metrics)}."
            )
        self.observe(metrics[self.metric])
        self._decide(state)

    def observe(self, metric: float) -> None:
        value = self.sign * metric
        if math.isfinite(value) and value > self.best + self.min_change:  # nothing would be better than an infinity
            self.best, self.since = value, 0
        else:
            self.since += 1

    def replay(self, metrics: Iterable[float]) -> None:
        """Instead of what a checkpoint remembers: other settings would have decided otherwise."""
        self.best, self.since = -math.inf, 0
        for metric in metrics:
            self.observe(metric)

    @property
    def decided(self) -> bool:
        return self.since >= self.patience

    def _decide(self, state: TrainState) -> None:
        if self.decided:
            state.finished_early = f"{self.metric} has not improved in {self.since} evaluations"

    def state_dict(self) -> dict[str, float]:
        return {"best": self.best, "since": self.since}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.best, self.since = state["best"], int(state["since"])
