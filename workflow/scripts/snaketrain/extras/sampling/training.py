"""Tells at the start of a training how often an epoch takes the examples of each class."""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snaketrain.training.callbacks import Callback
    from train_model import Attempt

MOST_NAMED = 20  # classes


def before_attempt(attempt: "Attempt") -> "list[Callback]":
    from snaketrain.extras.sampling.sampling import ByClass

    lengths = getattr(attempt.plan.batches, "lengths", None)
    if isinstance(lengths, ByClass):
        names = attempt.data.facts["label_names"]
        labels = [label for label, count in enumerate(attempt.data.facts["splits"]["train"]["label_counts"]) if count]
        often = [
            f"{names[label]} {count / len(members):.2f}"
            for label, members, count in zip(labels, lengths.members, lengths.counts, strict=True)
        ]
        more = f" and {len(often) - MOST_NAMED} classes more" if len(often) > MOST_NAMED else ""
        logging.info("train.sampling: how often an epoch takes an example, by its class: %s%s", ", ".join(often[:MOST_NAMED]), more)
    return []
