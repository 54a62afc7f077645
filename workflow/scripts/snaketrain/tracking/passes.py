"""One pass over all runs: brings MLflow up to date with each, and reports what could not be recorded."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mlflow.exceptions import MlflowException

from snaketrain.tracking.following import Follower
from snaketrain.tracking.mlflow_store import ExperimentDeleted
from snaketrain.tracking.problems import Problem, first_line

OF_ONE_RUN = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST", "INVALID_STATE")
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 60.0


class Postponed:
    """The runs that could not be recorded. Each is tried again after a pause of its own, which grows, so that it holds up no other run."""

    def __init__(self) -> None:
        self._problems: dict[Path, Problem] = {}
        self._pauses: dict[Path, float] = {}
        self._due: dict[Path, float] = {}

    def is_due(self, training: Path) -> bool:
        return time.monotonic() >= self._due.get(training, 0.0)

    def failed(self, training: Path, problem: Problem) -> None:
        pause = self._pauses[training] = min(2 * self._pauses.get(training, FIRST_PAUSE_SECONDS / 2), LONGEST_PAUSE_SECONDS)
        self._problems[training], self._due[training] = replace(problem, of_one_run=True), time.monotonic() + pause

    def recorded(self, training: Path) -> None:
        for known in (self._problems, self._pauses, self._due):
            known.pop(training, None)

    def problem(self) -> Problem | None:
        if not self._problems:
            return None
        first, *others = self._problems.values()
        return replace(first, what=f"{first.what} (and {len(others)} more runs)") if others else first


def full_pass(follower: Follower, note: Callable[[str], None], postponed: Postponed | None = None) -> Problem | None:
    """Update all runs but the postponed ones; a run with damaged files does not stop the others. Returns what went wrong."""
    follower.shared.deleted, postponed = None, postponed or Postponed()
    for training in filter(postponed.is_due, follower.runs()):
        note(f"updating {training.parent.name}")
        if problem := update(follower, training):
            postponed.failed(training, problem)
        else:
            postponed.recorded(training)
    problem = postponed.problem()
    try:
        follower.shared.comparison()
    except ExperimentDeleted as error:
        problem = problem or Problem(str(error), error.advice)
    if lost := follower.shared.deleted:
        problem = problem or Problem(str(lost), lost.advice)
    follower.label()
    return problem


def update(follower: Follower, training: Path) -> Problem | None:
    """Update one run; returns why it could not be recorded."""
    try:
        follower.update(training)
    except ExperimentDeleted as error:
        follower.forget()
        return Problem(str(error), error.advice)
    except MlflowException as error:
        if error.error_code not in OF_ONE_RUN:
            raise  # MLflow is unreachable, for the other runs as well
        follower.forget()
        return Problem(f"{training}: MLflow refused it: {first_line(error)}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Problem(f"{training}: cannot be recorded: {first_line(error)}")
    return None
