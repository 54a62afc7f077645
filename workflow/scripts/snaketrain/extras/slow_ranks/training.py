"""What a training does about slow ranks: a callback on each of them measures, and the first tells."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snaketrain.config.schema import Settings
    from snaketrain.runtime.journal import Journal
    from snaketrain.strategies.base import Strategy
    from snaketrain.training.callbacks import Callback


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--exclude-slow-nodes", action="store_true", help="start next time without nodes whose ranks compute slowly")


def options(run: "Settings") -> dict[str, bool]:
    return {"exclude-slow-nodes": run.compute.exclude_slow_nodes}  # type: ignore[attr-defined]  # one of FIELDS


def on_each_rank(arguments: argparse.Namespace, strategy: "Strategy", journal: "Journal") -> "list[Callback]":
    if strategy.world_size == 1:
        return []
    from snaketrain.extras.slow_ranks.slow_ranks import SlowRanks

    return [SlowRanks(strategy, journal, arguments.output.parent if arguments.exclude_slow_nodes else None)]
