"""Which ranks are named where a loss is not finite."""

from typing import Any

import numpy as np
import torch

from snaketrain.strategies.base import Strategy
from snaketrain.training.recovery import nonfinite_ranks
from snaketrain.training.state import StepOutcome


class SecondOfTwoPairs(Strategy):
    """Rank 2 of 4, of which 0 and 1 share a model, and 2 and 3: one of each pair answers."""

    rank, world_size = 2, 4

    def all_gather_object(self, item: Any) -> list[Any]:
        return [(0, True), item]


def test_ranks_are_those_of_all_processes():
    """Not numbers within the data parallel group, under which no log of a rank is found."""
    outcome = StepOutcome(1, np.arange(4), {"loss": torch.tensor(torch.nan)}, 4.0, 2.0, torch.tensor(torch.nan), 1e-3)
    assert nonfinite_ranks(SecondOfTwoPairs("cpu", "fp32"), outcome) == [2]
