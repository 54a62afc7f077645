"""What `training_step` returns beside its loss: figures that are logged and not learnt from."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from snaketrain.strategies.base import Strategy
from snaketrain.strategies.losses import Objective, losses_and_figures
from snaketrain.training.metric_window import MetricWindow
from snaketrain.training.recovery import nonfinite_ranks
from snaketrain.training.state import StepOutcome

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
    assert nonfinite_ranks(Strategy("cpu", "fp32"), outcome) == []


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
