"""Lowers the learning rate when the selection metric has stopped improving: torch's ReduceLROnPlateau, stepped at each evaluation."""

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from snaketrain.runtime.strict_json import JsonObject
from snaketrain.training.callbacks.base import Callback
from snaketrain.training.checkpoints.ranking import Selection, is_outdated
from snaketrain.training.state import StateDict, TrainState

KEPT = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")


class ReduceOnPlateau(Callback):
    def __init__(self, selection: Selection, arguments: JsonObject, learning_rate: float):
        self.metric, self.sign, self.learning_rate = selection.metric, selection.sign, learning_rate
        self.optimizer = torch.optim.SGD([torch.zeros(1)], lr=learning_rate)
        try:
            self.scheduler = ReduceLROnPlateau(self.optimizer, mode="max" if selection.mode == "max" else "min", **arguments)
        except (TypeError, ValueError) as error:
            raise SystemExit(
                f"train.schedule: ReduceLROnPlateau cannot be made with the arguments {arguments}: {error}. Correct them."
            ) from error

    def on_train_start(self, state: TrainState) -> None:
        state.rate_scale = self.scale

    def on_evaluation(self, state: TrainState, metrics: dict[str, float]) -> None:
        if not state.step:
            return  # the initial weights
        if self.metric not in metrics:
            raise SystemExit(
                f"select.metric: the task logs no `{self.metric}`, which ReduceLROnPlateau needs. It logs: {', '.join(metrics)}."
            )
        self.scheduler.step(metrics[self.metric])
        state.rate_scale = self.scale

    @property
    def scale(self) -> float:
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate / self.learning_rate

    def state_dict(self) -> dict[str, object]:
        kept = {name: getattr(self.scheduler, name) for name in KEPT}
        return kept | {"rate": self.optimizer.param_groups[0]["lr"], "metric": self.metric, "sign": self.sign}

    def load_state_dict(self, state: StateDict) -> None:
        if not is_outdated(
            state, self.metric, self.sign
        ):  # else it waits for a plateau of the new metric, from the rate that it has reached
            for name in KEPT:
                setattr(self.scheduler, name, state[name])
        self.optimizer.param_groups[0]["lr"] = state["rate"]
