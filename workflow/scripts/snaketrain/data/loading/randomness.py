"""Makes an example the same whichever process makes it, and whenever: its random numbers, and its rounding."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

ALL_BITS = 2**64 - 1


def seed_all(*parts: int) -> None:
    seed = 0
    for part in parts:
        seed = spread(seed + part)
    torch.default_generator.manual_seed(seed >> 1)  # the CPU's alone, where items are made
    np.random.seed(seed >> 32)
    random.seed(seed)


def spread(number: int) -> int:
    """Splitmix64: maps neighbouring numbers to unrelated ones, much faster than numpy's SeedSequence."""
    mixed = (number + 0x9E3779B97F4A7C15) & ALL_BITS
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & ALL_BITS
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & ALL_BITS
    return mixed ^ (mixed >> 31)


@contextmanager
def preserved_randomness() -> Iterator[None]:
    """What is drawn inside does not affect the rest of the training, such as dropout."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


@contextmanager
def one_thread() -> Iterator[None]:
    """As in a worker process: a sum over several threads is rounded differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
