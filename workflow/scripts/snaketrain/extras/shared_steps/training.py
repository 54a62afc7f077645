"""What a training does about steps that others have taken: before its first one it takes them over."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.extras.shared_steps.settings import StepsCache, shared_steps

if TYPE_CHECKING:
    from snaketrain.config.schema import Settings
    from snaketrain.training.callbacks import Callback
    from train_model import Attempt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trunk", nargs="?", type=Path, metavar="MANIFEST", help="manifest of a training whose first steps are also this one's"
    )
    parser.add_argument(
        "--steps-cache", type=StepsCache.model_validate_json, metavar="JSON", help="shared_steps.cache of the configuration, as JSON"
    )


def options(run: "Settings") -> "dict[str, str | None]":
    cache = shared_steps(run).cache
    return {"steps-cache": cache.model_dump_json() if cache else None}


def before_attempt(attempt: "Attempt") -> "list[Callback]":
    from snaketrain.extras.shared_steps.reuse import Beginning, reuse_steps
    from snaketrain.extras.shared_steps.trajectory import Fingerprints, trajectory_of_attempt
    from snaketrain.extras.shared_steps.trunks import record_trunk
    from snaketrain.training.building import early_stopping

    folder, plan, trunk = attempt.job.folder, attempt.plan, attempt.arguments.trunk
    if attempt.until is None:  # a rung leaves that to the training which continues it
        record_trunk(folder, trunk)
    if attempt.job.mixed:  # its weights also follow from settings or code that it had before
        return []
    trajectory = trajectory_of_attempt(attempt)
    callbacks: list[Callback] = [Fingerprints(trajectory, folder / "checkpoints")]
    cache = None
    if given := attempt.arguments.steps_cache:
        from snaketrain.extras.shared_steps.cache import Cache, Sharing  # libraries that no other training needs

        cache = Cache.of(given)
        callbacks += [Sharing(cache, folder, trajectory, plan.last)] if cache.key else []
    reuse_steps(Beginning(folder, trajectory, plan, early_stopping(plan.train, attempt.selection)), trunk and trunk.parent, cache)
    return callbacks
