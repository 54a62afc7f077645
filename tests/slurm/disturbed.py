"""What tests share that disturb one training one after the other."""

from collections.abc import Iterator
from contextlib import contextmanager

from slurm.lab import Workflow, attempts, steps, until

SAVE_BEFORE_LIMIT_SECONDS = 60


@contextmanager
def started_again(workflow: Workflow, most: int = 1) -> Iterator[None]:
    """What happens inside must make it start again by itself and take new steps, within `most` starts."""
    starts, step = attempts(workflow.folder), max(steps(workflow.folder))
    yield
    until(lambda: attempts(workflow.folder) > starts, "it is started again", workflow=workflow)
    until(lambda: max(steps(workflow.folder)) > step, "it trains on", workflow=workflow)
    assert attempts(workflow.folder) - starts <= most
