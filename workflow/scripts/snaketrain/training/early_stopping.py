"""What the selection metric decides while training: its early end, or a lower learning rate once it has stopped improving.

What was measured before, also by another training whose steps this one has taken over, is in the journal.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from snaketrain.runtime.journal import Event, all_events
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.training.callbacks import Callback
from snaketrain.training.checkpoints.ranking import Selection
from snaketrain.training.state import StateDict, Stateful, TrainState

if TYPE_CHECKING:
    from snaketrain.training.trainer import Trainer


class EarlyStopping(Callback):
    """Ends a training when the selection metric has not improved for a number of evaluations."""

    def __init__(self, selection: Selection, patience: int, min_change: float = 0.0):
        self.metric, self.sign = selection.metric, selection.sign
        self.patience, self.min_change = patience, min_change
        self.forget()

    def forget(self) -> None:
        self.best, self.since = -math.inf, 0

    def on_train_start(self, state: TrainState) -> None:
        self._decide(state)  # the last attempt may have been killed after its last evaluation

    def on_evaluation(self, state: TrainState, metrics: dict[str, float]) -> None:
        if not state.step:
            return  # the initial weights
        self.observe(logged(metrics, self.metric, "train.early_stopping"))
        self._decide(state)

    def observe(self, metric: float) -> None:
        value = self.sign * metric
        if math.isfinite(value) and value > self.best + self.min_change:  # nothing would be better than an infinity
            self.best, self.since = value, 0
        else:
            self.since += 1

    @property
    def decided(self) -> bool:
        return self.since >= self.patience

    def _decide(self, state: TrainState) -> None:
        if self.decided:
            state.finished_early = f"{self.metric} has not improved in {self.since} evaluations"


KEPT = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")


class ReduceOnPlateau(Callback):
    """torch's ReduceLROnPlateau, stepped at each evaluation."""

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
        self.scheduler.step(logged(metrics, self.metric, "ReduceLROnPlateau"))
        state.rate_scale = self.scale

    @property
    def scale(self) -> float:
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate / self.learning_rate

    def state_dict(self) -> dict[str, object]:
        kept = {name: getattr(self.scheduler, name) for name in KEPT}
        return kept | {"rate": self.optimizer.param_groups[0]["lr"], "metric": self.metric, "sign": self.sign}

    def load_state_dict(self, state: StateDict) -> None:
        # by another metric it waits for a plateau of that, from the rate reached
        if (state["metric"], state["sign"]) == (self.metric, self.sign):
            for name in KEPT:
                setattr(self.scheduler, name, state[name])
        self.optimizer.param_groups[0]["lr"] = state["rate"]


def logged(metrics: dict[str, float], metric: str, needs: str) -> float:
    if metric not in metrics:
        raise SystemExit(f"select.metric: the task logs no `{metric}`, which {needs} needs. It logs: {', '.join(metrics)}.")
    return metrics[metric]


# --- Evaluations that need not be repeated, by the journal.

Evaluations = dict[int, dict[str, float]]


def evaluations(folder: Path, counts: Callable[[Event], bool] = lambda attempt: True) -> Evaluations:
    """By step, those of the last attempt that has taken the step; `counts`: whether those of an attempt do."""
    found: Evaluations = {}
    counted = True  # what was taken over is before the first attempt
    for event in all_events(folder / "journal.jsonl"):
        if event.get("event") == "eval" and counted:
            found[event["step"]] = event["metrics"]
        elif event.get("event") == "attempt":
            counted = counts(event)
            found = {step: metrics for step, metrics in found.items() if step <= event.get("resume_step", 0)}
    return found


def replay_evaluations(trainer: "Trainer") -> None:
    """Early stopping and the best metric follow from the journal: by the metric that counts now, also of steps taken over from another training."""
    state, checkpoints, plan = trainer.state, trainer.checkpoints, trainer.plan
    stopping = [callback for callback in trainer.callbacks.callbacks if isinstance(callback, EarlyStopping)]
    found = state.strategy.all_gather_object(sorted(evaluations(checkpoints.folder.parent).items()) if state.rank == 0 else [])[0]
    known = [(step, metrics) for step, metrics in found if 0 < step < state.step or (step == state.step and checkpoints.evaluated)]
    for each in stopping:
        each.forget()
    for step, metrics in known:
        trainer.best.improved(metrics)
        for each in stopping:
            if plan.evaluates_at(step) and each.metric in metrics:
                each.observe(metrics[each.metric])


def evaluate_taken_over(trainer: "Trainer") -> None:
    """Evaluate the checkpoints that were taken over without metrics: theirs were of other data, or other ones."""
    state, checkpoints, last = trainer.state, trainer.checkpoints, trainer.state.step
    if not checkpoints.taken_over:
        return
    found = [int(step) for step, metrics in checkpoints.metrics().items() if metrics is None] if state.rank == 0 else []
    found = state.strategy.all_gather_object(found)[0]
    steps = [step for step in found if trainer.plan.evaluates_at(step) and not (step == last and trainer.owed)]
    task: dict[str, Stateful] = {"task": state.task}
    for step in steps:
        checkpoints.load(state, step, task)
        if (metrics := trainer.measure()) is None:
            trainer.owed = True  # stopped: the next attempt continues
            break
        trainer.journal.write("eval", step=step, metrics=metrics, spent=trainer.clock.spent())
        trainer.best.improved(metrics)
        if state.rank == 0:
            checkpoints.set_metrics(step, metrics)
    if steps:
        checkpoints.load(state, last, task)
