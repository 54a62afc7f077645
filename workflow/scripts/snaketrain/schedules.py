"""The learning rate over time, as a share of the highest one. A schedule is a function of the progress from 0 to 1."""

import math


def constant(progress: float) -> float:
    return 1.0


def linear(progress: float) -> float:
    return 1.0 - progress


def cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))
