"""The learning rate over time, as a share of the highest one.

A schedule is a function of the steps done and of all steps (both without the warm-up), or a class whose objects can be
called so. One that never asks for the number of all steps may say so by `open_ended`: with more steps, a finished training
then goes on instead of starting again.
"""

import math


def constant(done: int, steps: int) -> float:
    return 1.0


constant.open_ended = True  # type: ignore[attr-defined]  # functions take attributes


def linear(done: int, steps: int) -> float:
    return 1.0 - done / steps


def cosine(done: int, steps: int, lowest: float = 0.0) -> float:
    return lowest + (1.0 - lowest) * 0.5 * (1.0 + math.cos(math.pi * done / steps))


def warmup_stable_decay(done: int, steps: int, decay: float = 0.2) -> float:
    """The highest rate, and in the last share of the steps a linear fall to 0."""
    return min(1.0, (1.0 - done / steps) / decay)


def inverse_square_root(done: int, steps: int, stable: int = 1000) -> float:
    """After some steps at the highest rate, a fall with the square root of their number."""
    return math.sqrt(stable / max(stable, done))


inverse_square_root.open_ended = True  # type: ignore[attr-defined]
