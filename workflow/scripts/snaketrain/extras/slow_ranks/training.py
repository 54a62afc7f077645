"""What a training does about slow ranks: a callback on each of them measures, and the first tells."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snaketrain.runtime.journal import Journal
    from snaketrain.strategies.base import Strategy
    from snaketrain.training.callbacks import Callback


def on_each_rank(arguments: argparse.Namespace, strategy: "Strategy", journal: "Journal") -> "list[Callback]":
    if strategy.world_size == 1:
        return []
    from snaketrain.extras.slow_ranks.slow_ranks import SlowRanks

    return [SlowRanks(strategy, journal)]
