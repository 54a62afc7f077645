"""What a training does about steps that others have taken: before its first one it takes them over."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from train_model import Attempt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trunk", nargs="?", type=Path, metavar="MANIFEST", help="manifest of a training whose first steps are also this one's"
    )


def before_attempt(attempt: "Attempt") -> None:
    from snaketrain.extras.shared_steps.reuse import reuse_steps
    from snaketrain.extras.shared_steps.trunks import record_trunk

    trunk: Path | None = attempt.arguments.trunk
    if attempt.until is None:  # a rung leaves that to the training which continues it
        record_trunk(attempt.folder, trunk)
    if attempt.trajectory:
        reuse_steps(attempt.folder, attempt.trajectory, attempt.plan, attempt.stopping, trunk and trunk.parent)
