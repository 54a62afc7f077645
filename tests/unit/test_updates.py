"""A step updates either all modules and optimizers of a loss, or none."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from snaketrain.data.loading.batches import MicroBatch
from snaketrain.strategies.base import Strategy, step_on_device
from snaketrain.tasks.base import Task
from snaketrain.training.state import StepOutcome, TrainState
from snaketrain.training.step import BadSteps, bad_ranks, take_step

INFINITE, NAN = float("inf"), float("nan")


class Together(Task):
    """Two modules that one loss trains; `spoil` makes the gradient of the second one infinite."""

    spoil = False

    def training_step(self, modules: dict[str, nn.Module], batch: dict[str, Tensor]) -> Tensor:
        first, second = (modules[name](batch["x"]) for name in ("first", "second"))
        if self.spoil:
            second.register_hook(lambda gradient: gradient * INFINITE)
        return (first + second).float().sum() / 8  # scaled up it is still in the range of fp16


def learner(strategy: Strategy, task: Task) -> TrainState:
    torch.manual_seed(0)
    modules = {name: nn.Linear(3, 2) for name in ("first", "second")}
    return TrainState(task, strategy, modules, {name: torch.optim.AdamW(module.parameters()) for name, module in modules.items()}, 1.0)


def step(ours: TrainState) -> Tensor:
    return take_step(ours, [(MicroBatch((0,)), {"x": torch.ones(1, 3)})], 1.0, 0.1)[1]


def weights(ours: TrainState) -> dict[str, Tensor]:
    return {name: module.weight.detach().clone() for name, module in ours.modules.items()}


def changed(ours: TrainState, before: dict[str, Tensor]) -> list[bool]:
    return [not torch.equal(before[name], tensor) for name, tensor in weights(ours).items()]


def test_an_overflow_in_one_module_skips_the_other_too():
    ours = learner(Strategy("cpu", "fp16"), Together())
    scale, start = ours.strategy.scaler.get_scale(), weights(ours)
    ours.task.spoil = True
    assert not step(ours).isfinite()
    assert changed(ours, start) == [False, False]
    assert not any(optimizer.state for optimizer in ours.optimizers.values())
    assert ours.strategy.scaler.get_scale() == scale / 2
    ours.task.spoil = False
    assert step(ours).isfinite()
    assert changed(ours, start) == [True, True]


@pytest.mark.parametrize("norm", [1.0, NAN, INFINITE])
def test_a_fused_optimizer_decides_on_the_device(norm):
    """As on a GPU, where the host does not wait for the norm."""
    module = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    for expected in (1.0, 1.0 if not math.isfinite(norm) else 2.0):
        module(torch.ones(3)).sum().backward()
        before = module.weight.detach().clone()
        step_on_device(optimizer, optimizer, torch.tensor(1.0 if not optimizer.state else norm))
        assert optimizer.state[module.weight]["step"].item() == expected
    assert torch.equal(before, module.weight) == (not math.isfinite(norm))


class OfTwo(Strategy):
    """One of two processes; `other` gives the other one's gradients; the modules are wrapped by the task itself."""

    other = 0.0

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor.double() + self.other


def test_modules_wrapped_by_a_task_are_updated_by_all_processes_or_none():
    ours = learner(OfTwo("cpu", "fp32"), Together())
    ours.task.wraps, start = False, weights(ours)
    ours.strategy.other = 1.0  # has found an infinite gradient
    assert not step(ours).isfinite()
    assert changed(ours, start) == [False, False]
    ours.strategy.other = 0.0
    assert step(ours).isfinite()
    assert changed(ours, start) == [True, True]


def test_running_out_of_memory_between_two_optimizers_is_not_retried(monkeypatch):
    ours = learner(Strategy("cpu", "fp32"), Together())

    def too_much() -> None:
        raise torch.OutOfMemoryError("2 GiB are too much")

    monkeypatch.setattr(ours.optimizers["second"], "step", too_much)
    with pytest.raises(SystemExit, match=r"while the weights were updated: 2 GiB are too much .* zero1 or fsdp"):
        step(ours)


@pytest.mark.parametrize(("scale", "reported"), [(2.0**10, []), (0.5, [7])])
def test_nonfinite_gradients_without_a_loss_scale_are_not_an_overflow(scale, reported):
    """Otherwise a training in fp16 whose gradients are all NaN would end without a message."""
    strategy, lines = Strategy("cpu", "fp16"), []
    strategy.scaler.scale(torch.ones(()))  # which makes its state
    strategy.scaler.update(scale)
    state: Any = SimpleNamespace(strategy=strategy, spikes=None)
    journal: Any = SimpleNamespace(write=lambda event, **facts: lines.append(facts))
    outcome = StepOutcome(7, np.arange(2), {"": torch.ones(())}, 2.0, 2.0, torch.tensor(NAN), 0.1)
    BadSteps(3, 0).settle(outcome, state, SimpleNamespace(), journal)
    assert [line["step"] for line in lines] == reported


class SecondOfTwoPairs(Strategy):
    """Rank 2 of 4, of which 0 and 1 share a model, and 2 and 3: one of each pair answers."""

    rank, world_size = 2, 4

    def all_gather_object(self, item: Any) -> list[Any]:
        return [(0, True, True), item]


def test_ranks_are_those_of_all_processes():
    """Not numbers within the data parallel group, under which no log of a rank is found."""
    outcome = StepOutcome(1, np.arange(4), {"loss": torch.tensor(torch.nan)}, 4.0, 2.0, torch.tensor(torch.nan), 1e-3)
    assert bad_ranks(SecondOfTwoPairs("cpu", "fp32"), outcome) == [2]
