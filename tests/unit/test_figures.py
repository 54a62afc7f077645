"""What `training_step` returns, losses and figures beside them, as it is logged and as a checkpoint keeps it until then."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from snaketrain.strategies.base import Strategy
from snaketrain.strategies.losses import Objective, losses_and_figures
from snaketrain.training.metric_window import MetricWindow
from snaketrain.training.state import StepOutcome
from snaketrain.training.step import bad_ranks

LOSS = torch.tensor(3.0, requires_grad=True)
INPUTS = torch.arange(8.0)


class MicroBatch:
    filler = False


class Filler:
    filler = True


def loss_with_figures(modules, batch):
    values = modules["model"](batch["x"][:, None]).square()[:, 0]
    large = batch["x"] > 5
    return values.sum(), {"mean_input": batch["x"].sum(), "large_input": ((batch["x"] * large).sum(), large.sum())}


def figures_of(cuts: list[int], loss, filler: bool = False) -> tuple[dict[str, float], torch.Tensor]:
    """Logged figures and gradients of 8 examples in microbatches."""
    strategy, model = Strategy("cpu", "fp32"), nn.Linear(1, 1)
    nn.init.constant_(model.weight, 0.5), nn.init.constant_(model.bias, 0.25)
    parts = [(MicroBatch(), {"x": part}) for part in torch.tensor_split(INPUTS, cuts)]
    parts += [(Filler(), {"x": torch.full((3,), 1e6)})] if filler else []
    sums = strategy.forward_backward(Objective(loss, {"model": model}, ["model"]), parts, 8.0)
    window = MetricWindow(strategy)
    window.add(StepOutcome(1, np.arange(8), sums, 8.0, 8.0, torch.tensor(1.0), 1e-3))
    saved = json.loads(json.dumps(window.state_dict()))
    resumed = MetricWindow(strategy)
    resumed.load_state_dict(saved)
    assert resumed.of_this_rank("examples")["loss"] == pytest.approx(resumed.close("examples")["loss"])
    return resumed.close("examples"), model.weight.grad


@pytest.mark.parametrize(("cuts", "filler"), [([], False), ([3], False), ([1, 5], True)])
def test_figures_are_logged_and_leave_the_loss_as_it_is(cuts, filler):
    found, gradient = figures_of(cuts, loss_with_figures, filler)
    plain, plain_gradient = figures_of([], lambda modules, batch: loss_with_figures(modules, batch)[0])
    assert found["loss"] == pytest.approx(plain["loss"]) and torch.allclose(gradient, plain_gradient)
    assert found["loss"] == pytest.approx(((0.5 * INPUTS + 0.25) ** 2).mean().item())
    assert found["mean_input"] == pytest.approx(3.5) and found["large_input"] == pytest.approx(6.5)
    assert not [name for name in found if "figure" in name]


def test_a_figure_of_nothing_is_null_and_one_that_is_not_finite_is_no_bad_step():
    found, _ = figures_of([], lambda *given: (loss_with_figures(*given)[0], {"none": (torch.tensor(0), torch.tensor(0))}))
    assert np.isnan(found["none"])
    _, sums = losses_and_figures((LOSS, {"x": torch.tensor(torch.inf)}))
    outcome = StepOutcome(1, np.arange(8), {"": LOSS.detach()} | sums, 8.0, 8.0, torch.tensor(torch.nan), 1e-3)
    assert bad_ranks(Strategy("cpu", "fp32"), outcome) == []


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ({"a": LOSS, "hits": torch.tensor(5.0)}, "'hits' among its losses, but nothing can be learnt from it, since it has no gradient"),
        ({"loss": LOSS, "a": LOSS}, "'loss' among its losses, which are added up. Return the whole loss alone"),
        ({"a": LOSS, "hits": 5}, "'hits' among its losses, as a int"),
        ({"a": LOSS * torch.ones(3)}, r"'a' among its losses, as a tensor of shape \[3\]"),
        (None, "returns its loss, as a NoneType"),
        ((LOSS, torch.tensor(5)), "beside the loss, `training_step` returns a Tensor. Return figures by name"),
        ((LOSS, {"hits": 5}), "a figure 'hits' that is no sum, a tensor of one value"),
        ((LOSS, {"hits": (LOSS, LOSS, LOSS)}), "a figure 'hits' that is no sum"),
        ((LOSS, {"hits": torch.ones(3)}), "a figure 'hits' that is no sum"),
        ((LOSS, {"learning_rate": LOSS}), "a figure 'learning_rate', but each training logs one of this name"),
        ((LOSS, {"loss_a": LOSS}), "a figure 'loss_a', but each training logs one of this name"),
    ],
    ids=str,
)
def test_what_is_neither_a_loss_nor_a_figure_is_refused(returned, words):
    with pytest.raises(SystemExit, match=words):
        losses_and_figures(returned)


def test_a_batch_may_have_nothing_of_a_loss():
    parts, figures = losses_and_figures({"a": LOSS, "b": torch.tensor(0.0)})
    assert list(parts) == ["a", "b"] and not figures


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
