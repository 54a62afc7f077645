"""One pass over all runs: brings MLflow up to date with each, and reports what could not be recorded."""

from collections.abc import Callable

from mlflow.exceptions import MlflowException

from snaketrain.tracking.following import Follower
from snaketrain.tracking.mlflow_store import ExperimentDeleted
from snaketrain.tracking.problems import Problem, first_line

OF_ONE_RUN = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST", "INVALID_STATE")


def full_pass(follower: Follower, note: Callable[[str], None]) -> Problem | None:
    """Update all runs; one with damaged files does not stop the others. Returns what went wrong."""
    problem, follower.shared.deleted = None, None
    for training in follower.runs():
        note(f"updating {training.parent.name}")
        try:
            follower.update(training)
        except ExperimentDeleted as error:
            follower.forget()
            problem = Problem(str(error), error.advice)
        except MlflowException as error:
            if error.error_code not in OF_ONE_RUN:
                raise  # MLflow is unreachable, for the other runs as well
            follower.forget()
            problem = Problem(f"{training}: MLflow refused it: {first_line(error)}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = Problem(f"{training}: cannot be recorded: {first_line(error)}")
    try:
        follower.shared.comparison()
    except ExperimentDeleted as error:
        problem = problem or Problem(str(error), error.advice)
    if lost := follower.shared.deleted:
        problem = problem or Problem(str(lost), lost.advice)
    follower.label()
    return problem
