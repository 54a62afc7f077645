"""What a checkpoint keeps of the losses since the last line of the journal."""

import json
from typing import Any

import pytest
import torch

from snaketrain.strategies.base import Strategy
from snaketrain.training.window import Window

LOSSES = [{"a": torch.tensor(0.1), "b": torch.tensor(1 / 3)}, {"a": torch.tensor(0.7), "b": torch.tensor(1e-3)}]


class OfTwo(Strategy):
    """The second process of two, of which the first one has the same."""

    rank, world_size = 1, 2

    def all_gather_object(self, item: Any) -> list[Any]:
        return [item, item]


def window(strategy: Strategy, losses: list[dict[str, torch.Tensor]]) -> Window:
    made = Window(strategy)
    for step in losses:
        made.add(step, 16.0, 8.0, 16)
    return made


def test_losses_are_sent_as_numbers_and_added_up_as_before():
    """A tensor would be sent with its device: each process would take memory on the GPUs of all others."""
    state = window(OfTwo("cpu", "fp32"), LOSSES[:1]).state()
    assert json.loads(json.dumps(state)) == state
    resumed = Window(OfTwo("cpu", "fp32"))
    resumed.load_state(state)
    resumed.add(LOSSES[1], 16.0, 8.0, 16)
    expected = window(OfTwo("cpu", "fp32"), LOSSES)
    assert all(torch.equal(resumed.losses[name], total) for name, total in expected.losses.items())


def test_processes_that_had_no_part_in_a_loss_add_it_up_as_well():
    """Else they would not take part in adding up, and the others would wait for them."""
    state = window(Strategy("cpu", "fp32"), LOSSES).state()
    resumed = Window(OfTwo("cpu", "fp32"))
    resumed.load_state(state)
    assert resumed.losses == {"a": 0.0, "b": 0.0}
    assert resumed.close("examples")["loss"] == pytest.approx(0.0)
