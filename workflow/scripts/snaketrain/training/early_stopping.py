"""What the selection metric decides while training: its early end, or a lower learning rate once it has stopped improving.

What was measured before, also by another training whose steps this one has taken over, is in the journal.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from snaketrain.runtime.journal import all_events, events_named
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.training.callbacks import Callback
from snaketrain.training.checkpoints.ranking import Selection, is_outdated, read_state
from snaketrain.training.state import StateDict, Stateful, TrainState

if TYPE_CHECKING:
    from snaketrain.training.trainer import Trainer


class EarlyStopping(Callback):
    """Ends a training when the selection metric has not improved for a number of evaluations."""

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
        self.observe(logged(metrics, self.metric, "train.early_stopping"))
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
        if not is_outdated(
            state, self.metric, self.sign
        ):  # else it waits for a plateau of the new metric, from the rate that it has reached
            for name in KEPT:
                setattr(self.scheduler, name, state[name])
        self.optimizer.param_groups[0]["lr"] = state["rate"]


def logged(metrics: dict[str, float], metric: str, needs: str) -> float:
    if metric not in metrics:
        raise SystemExit(f"select.metric: the task logs no `{metric}`, which {needs} needs. It logs: {', '.join(metrics)}.")
    return metrics[metric]


# --- Evaluations that need not be repeated, by the journal.

JOURNAL = "journal.jsonl"
Evaluations = dict[int, dict[str, float]]


def evaluations(folder: Path, measures: str | None) -> Evaluations:
    """By step, those of the last attempt that has taken the step; only of attempts with these measures, since code may change between two.

    None: whatever their measures.
    """
    found: Evaluations = {}
    begun, alike = False, True
    for event in all_events(folder / JOURNAL):
        if event.get("event") == "eval" and alike:
            found[event["step"]] = event["metrics"]
        elif event.get("event") == "attempt":
            alike = measures is None or event.get("measures") == measures
            known = found if begun or alike else {}  # what was itself taken over has the measures of the first attempt
            found = {step: metrics for step, metrics in known.items() if step <= event.get("resume_step", 0)}
            begun = True
    return found if begun or measures is None else {}


def evaluations_until(folder: Path, last: int) -> list[tuple[int, dict[str, float]]]:
    """A training's own, in the order of their steps; of a step that was repeated the last one."""
    return sorted((step, metrics) for step, metrics in evaluations(folder, None).items() if step <= last)


def steps_taken_over(folder: Path) -> int:
    """How many steps another training has taken; the journal then begins with them."""
    event = next(events_named(folder / JOURNAL, "reused"), None)
    return event["step"] if event else 0


class KnownEvaluations:
    def __init__(self, folder: Path):
        self.folder = folder
        self.taken_over = 0  # steps, until this training has saved a checkpoint of its own, which remembers what follows from them

    def replay(self, trainer: "Trainer") -> None:
        """Early stopping and the best metric are those of a training that has evaluated these steps itself, by the metric that counts now."""
        state, checkpoints, plan = trainer.state, trainer.checkpoints, trainer.plan
        taken_over = state.strategy.all_gather_object(steps_taken_over(self.folder) if state.rank == 0 else 0)[0]
        self.taken_over = taken_over if state.step <= taken_over else 0
        stopping = [callback for callback in trainer.callbacks.callbacks if isinstance(callback, EarlyStopping)]
        if not (self.taken_over or trainer.best.outdated or any(each.outdated for each in stopping)):
            return
        found = state.strategy.all_gather_object(evaluations_until(self.folder, state.step) if state.rank == 0 else [])[0]
        known = [(step, metrics) for step, metrics in found if 0 < step < state.step or (step == state.step and checkpoints.evaluated)]
        trainer.best.replay(metrics for _, metrics in known)
        for each in stopping:
            each.replay(metrics[each.metric] for step, metrics in known if plan.evaluates_at(step) and each.metric in metrics)

    def measure(self, trainer: "Trainer") -> None:
        """Evaluate the checkpoints that were taken over without metrics: theirs were of other data, or other ones."""
        state, checkpoints, last = trainer.state, trainer.checkpoints, trainer.state.step
        steps = list(filter(trainer.plan.evaluates_at, self._without_metrics())) if self.taken_over and state.rank == 0 else []
        steps = [step for step in state.strategy.all_gather_object(steps)[0] if step < last or (step == last and not trainer.owed)]
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

    def _without_metrics(self) -> list[int]:
        states = map(read_state, sorted(self.folder.glob("checkpoints/step-*")))
        return [state["step"] for state in states if state["metrics"] is None and state["step"] <= self.taken_over]
