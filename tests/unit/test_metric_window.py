"""The losses since the last line of the journal, as a checkpoint keeps them."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from snaketrain.strategies.base import Strategy
from snaketrain.training.metric_window import MetricWindow
from snaketrain.training.state import StepOutcome

LOSSES = [{"a": torch.tensor(0.1), "b": torch.tensor(1 / 3)}, {"a": torch.tensor(0.7), "b": torch.tensor(1e-3)}]


class OfTwo(Strategy):
    """The second of two processes; the first one has the same values."""

    rank, world_size = 1, 2

    def all_gather_object(self, item: Any) -> list[Any]:
        return [item, item]


def outcome(losses: dict[str, torch.Tensor], norm: float = 1.0) -> StepOutcome:
    return StepOutcome(1, np.arange(16), losses, 16.0, 8.0, torch.tensor(norm), 1e-3)


def window(strategy: Strategy, losses: list[dict[str, torch.Tensor]]) -> MetricWindow:
    made = MetricWindow(strategy)
    for step in losses:
        made.add(outcome(step))
    return made


def test_losses_are_sent_as_numbers_and_added_up_as_before():
    """A tensor would be sent with its device: each process would take memory on the GPUs of all others."""
    state = window(OfTwo("cpu", "fp32"), LOSSES[:1]).state_dict()
    assert json.loads(json.dumps(state)) == state
    resumed = MetricWindow(OfTwo("cpu", "fp32"))
    resumed.load_state_dict(state)
    resumed.add(outcome(LOSSES[1]))
    expected = window(OfTwo("cpu", "fp32"), LOSSES)
    assert all(torch.equal(resumed.losses[name], total) for name, total in expected.losses.items())


def test_processes_that_had_no_part_in_a_loss_add_it_up_as_well():
    """Otherwise they would not take part in the reduction, and their peers would wait for them."""
    state = window(Strategy("cpu", "fp32"), LOSSES).state_dict()
    resumed = MetricWindow(OfTwo("cpu", "fp32"))
    resumed.load_state_dict(state)
    assert resumed.losses == {"a": 0.0, "b": 0.0}
    assert resumed.close("examples")["loss"] == pytest.approx(0.0)


class Other(Strategy):
    """Of two processes, whose losses have other names in the other one."""

    def all_gather_object(self, item: list[str]) -> list[list[str]]:
        return [item, ["b", "a"]]


def test_names_that_differ_between_processes_are_refused():
    """Added one after the other, losses of different names would be mixed, or ranks would block in a collective."""
    with pytest.raises(SystemExit, match="`training_step` has not returned the same names in all processes; here a, b"):
        window(Other("cpu", "fp32"), LOSSES).close("examples")


def test_a_step_counts_once_and_only_if_it_was_applied():
    made, step = MetricWindow(Strategy("cpu", "fp32")), outcome(LOSSES[0])
    made.add(step)
    made.add(step)
    made.add(outcome(LOSSES[1], norm=float("nan")))
    assert made.examples == 16 and made.losses == LOSSES[0]
