"""The learning rate over time, as a fraction of the highest one; once it has fallen, it does not rise again.

A schedule is a function of the steps done and the total steps (both without the warm-up), or a class with such a `__call__`. If more
steps leave its rates as they were up to some step, a longer training continues from there.
"""

import math


def constant(done: int, steps: int) -> float:
    return 1.0


def linear(done: int, steps: int) -> float:
    return 1.0 - done / steps


def cosine(done: int, steps: int, lowest: float = 0.0) -> float:
    return lowest + (1.0 - lowest) * 0.5 * (1.0 + math.cos(math.pi * done / steps))


def warmup_stable_decay(done: int, steps: int, decay: float = 0.2, lowest: float = 0.0) -> float:
    """The highest rate, then a linear decay to `lowest` of it over the last `decay` steps; up to 1, `decay` is a share of all steps."""
    left = min(1.0, (1.0 - done / steps) / decay if decay <= 1 else (steps - done) / decay)
    return lowest + (1.0 - lowest) * left if left < 1.0 else 1.0


def inverse_square_root(done: int, steps: int, stable: int = 1000) -> float:
    """The highest rate for `stable` steps, then a decay with the inverse square root of the step."""
    return math.sqrt(stable / max(stable, done))


FOR_ANY_LENGTH = (constant, inverse_square_root)  # rates that do not depend on how long the training is
