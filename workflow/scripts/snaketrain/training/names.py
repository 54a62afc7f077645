"""Sums over all ranks by name, which every rank must have: they are added one after the other."""

import zlib

from snaketrain.strategies.base import Strategy


def check_names(strategy: Strategy, names: list[str], method: str) -> None:
    """Exit on all ranks if some have other names. Otherwise ranks would add different sums, or wait for each other for ever."""
    number = zlib.crc32(repr(names).encode()) >> 12  # small enough for exact sums of squares
    count, total, squares = map(int, strategy.all_reduce_scalars(1, number, number**2))
    if total**2 != squares * count:  # by Cauchy and Schwarz they are equal only if all numbers are
        raise SystemExit(
            f"train.task.use: `{method}` has not returned the same names in all processes; here {', '.join(names)}. Return all names in each "
            "batch, in the same order, with zeros for what a batch has nothing of."
        )
