"""What extras do before a training takes steps: their `training.py` has `add_arguments(parser)` and `before_attempt(attempt)`."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.config.schema.of_extras import modules

if TYPE_CHECKING:
    from snaketrain.training.early_stopping import EarlyStopping
    from snaketrain.training.plan import Plan
    from snaketrain.training.trajectory import Trajectory


@dataclass(frozen=True)
class Attempt:
    """A start of a training, on rank 0: the folder is its own, run.json is written, the journal is not open yet."""

    arguments: argparse.Namespace  # of the command line, with those that the extras have added
    folder: Path
    plan: "Plan"
    trajectory: "Trajectory | None"  # none: its weights also follow from settings or code that it had before
    stopping: "EarlyStopping | None"
    until: int | None  # the last step to take now, from which another start continues


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for extra in modules("training"):
        extra.add_arguments(parser)


def prepare(attempt: Attempt) -> None:
    for extra in modules("training"):
        extra.before_attempt(attempt)
