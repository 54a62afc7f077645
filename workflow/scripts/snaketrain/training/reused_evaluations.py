"""Evaluations of steps that a training has taken over: what they decide is decided again, and what they lack is measured."""

from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.training.checkpoints.ranking import read_state
from snaketrain.training.early_stopping import EarlyStopping
from snaketrain.training.reuse import Reused, evaluations_until
from snaketrain.training.state import Stateful

if TYPE_CHECKING:
    from snaketrain.training.trainer import Trainer


class ReusedEvaluations:
    def __init__(self, folder: Path):
        self.folder = folder
        self.reused: Reused | None = None

    def replay(self, trainer: "Trainer") -> None:
        """Early stopping and the best metric are those of a training that has evaluated these steps itself, by the metric that counts now."""
        state, checkpoints, plan = trainer.state, trainer.checkpoints, trainer.plan
        found = state.strategy.all_gather_object(Reused.read(self.folder) if state.rank == 0 else None)[0]
        stopping = [callback for callback in trainer.callbacks.callbacks if isinstance(callback, EarlyStopping)]
        if found and state.step <= found.step:  # else it has saved a checkpoint of its own, which remembers all of this
            self.reused, evaluations = found, found.evaluations
        elif trainer.best.outdated or any(each.outdated for each in stopping):
            evaluations = state.strategy.all_gather_object(evaluations_until(self.folder, state.step) if state.rank == 0 else [])[0]
        else:
            return
        known = [
            (step, metrics) for step, metrics in evaluations if 0 < step < state.step or (step == state.step and checkpoints.evaluated)
        ]
        trainer.best.replay(metrics for _, metrics in known)
        for each in stopping:
            each.replay(metrics[each.metric] for step, metrics in known if plan.evaluates_at(step) and each.metric in metrics)

    def measure(self, trainer: "Trainer") -> None:
        """Evaluate the checkpoints whose metrics were of other data, or other ones."""
        state, checkpoints, last = trainer.state, trainer.checkpoints, trainer.state.step
        steps = list(filter(trainer.plan.evaluates_at, self._without_metrics(self.reused.step))) if self.reused and state.rank == 0 else []
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

    def _without_metrics(self, last: int) -> list[int]:
        states = map(read_state, sorted(self.folder.glob("checkpoints/step-*")))
        return [state["step"] for state in states if state["metrics"] is None and state["step"] <= last]
