"""Ends a training when the selection metric has not improved for a number of evaluations."""

import math
from collections.abc import Iterable

from snaketrain.training.callbacks.base import Callback
from snaketrain.training.checkpoints.ranking import Selection, is_outdated
from snaketrain.training.state import StateDict, TrainState


class EarlyStopping(Callback):
    def __init__(self, selection: Selection, patience: int, min_change: float = 0.0):
        self.metric, self.sign = selection.metric, selection.sign
        self.patience, self.min_change = patience, min_change
        self.best, self.since = -math.inf, 0
        self.outdated = False  # as in BestMetric

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
        self.best, self.since, self.outdated = -math.inf, 0, False
        for metric in metrics:
            self.observe(metric)

    @property
    def decided(self) -> bool:
        return self.since >= self.patience

    def _decide(self, state: TrainState) -> None:
        if self.decided:
            state.finished_early = f"{self.metric} has not improved in {self.since} evaluations"

    def state_dict(self) -> dict[str, object]:
        return {"best": self.best, "since": self.since, "metric": self.metric, "sign": self.sign}

    def load_state_dict(self, state: StateDict) -> None:
        self.outdated = is_outdated(state, self.metric, self.sign)
        if not self.outdated:
            self.best, self.since = state["best"], int(state["since"])
