"""Tells at the start of a training what each phase takes of each training set, and how often each is seen; and records that, step by step."""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snaketrain.training.callbacks import Callback
    from train_model import Attempt

OFTEN = 4  # times that a set is seen, from which on it is worth a warning


def before_attempt(attempt: "Attempt") -> "list[Callback]":
    from snaketrain.extras.mixtures.recording import TimesSeen
    from snaketrain.extras.mixtures.sampling import MixedBatches

    batches = attempt.plan.batches
    if not isinstance(batches, MixedBatches):
        return []
    for phase in batches.phases:
        parts = [f"{share / sum(phase.shares):.1%} {name}" for name, share in zip(phase.sets, phase.shares, strict=True)]
        logging.info("train.mixture: steps %d to %d: of the examples %s", phase.begins + 1, phase.last, ", ".join(parts))
    seen = batches.times_seen(attempt.plan.last)
    logging.info("train.mixture: how often each example is taken: %s", ", ".join(f"{name} {times:.2f}" for name, times in seen.items()))
    for name, times in seen.items():
        if times > OFTEN:
            logging.warning("train.mixture: each example of %s is taken %.1f times: give it more examples, or less weight", name, times)
    return [TimesSeen(batches)]
