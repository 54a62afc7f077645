"""Evaluations that a training need not repeat, by its journal: its own, and those of steps that another training has taken for it."""

from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.runtime.journal import all_events, events_named
from snaketrain.training.checkpoints.ranking import read_state
from snaketrain.training.early_stopping import EarlyStopping
from snaketrain.training.state import Stateful

if TYPE_CHECKING:
    from snaketrain.training.trainer import Trainer

JOURNAL = "journal.jsonl"
Evaluations = dict[int, dict[str, float]]


def evaluations(folder: Path, measures: str | None) -> Evaluations:
    """By step, those of the last attempt that has taken the step; only of attempts with these measures, since code may change between two.

    None: whatever their measures.
    """
    found: Evaluations = {}
    measured_alike: bool | None = (
        True if measures is None else None
    )  # not known yet of what was itself taken over, which has the measures of the first attempt
    for event in all_events(folder / JOURNAL):
        if event.get("event") == "eval" and measured_alike is not False:
            found[event["step"]] = event["metrics"]
        elif event.get("event") == "attempt":
            alike = measures is None or event.get("measures") == measures
            known, measured_alike = found if measured_alike is not None or alike else {}, alike
            found = {step: metrics for step, metrics in known.items() if step <= event.get("resume_step", 0)}
    return found if measured_alike is not None else {}


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
