"""What a checkpoint gives back, and to whom."""

import gc
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snaketrain.strategies.base import Strategy
from snaketrain.training.checkpoints import Checkpoints
from snaketrain.training.learner import Learner


class Second(Strategy):
    """The second process of two; `told` is what the first one tells it."""

    rank, world_size = 1, 2

    def __init__(self, told: Any):
        super().__init__("cpu", "fp32")
        self.told = told

    def everyones(self, item: Any) -> list[Any]:
        assert item is None  # nobody asks what it sees itself
        return [self.told, item]


def learner(strategy: Strategy) -> Learner:
    module = nn.Linear(40, 30)
    return Learner(None, strategy, {"model": module}, {"model": torch.optim.AdamW(module.parameters(), lr=0.1)}, None)


def train_and_save(folder: Path, steps: int) -> dict[int, torch.Tensor]:
    """A checkpoint after each step; the weights at each."""
    ours, checkpoints, weights = learner(Strategy("cpu", "fp32")), Checkpoints(folder, "loss", "min", steps), {}
    module, optimizer = ours.modules["model"], ours.optimizers["model"]
    for step in range(1, steps + 1):
        module(torch.ones(40)).sum().backward()
        optimizer.step()
        checkpoints.save(ours, step, {"loss": 1.0}, {})
        weights[step] = module.weight.detach().clone()
    checkpoints.finish()
    return weights


def test_all_take_what_the_first_process_has_chosen(tmp_path):
    """Which may not be the newest that another one sees: on another machine, or when one has just been written."""
    weights = train_and_save(tmp_path, 3)
    chosen = sorted(tmp_path.glob("step-*"))[1]
    second = learner(Second(chosen))
    assert Checkpoints(tmp_path, "loss", "min", 3).restore(second, {}) == 2
    assert torch.equal(second.modules["model"].weight, weights[2])
    assert Checkpoints(tmp_path, "loss", "min", 3).restore(learner(Second(None)), {}) == 0


def test_what_was_loaded_does_not_need_the_file_any_more(tmp_path):
    """Files are read where they lie, without a copy in each process; but old checkpoints are deleted while the training goes on."""
    train_and_save(tmp_path, 1)
    ours = learner(Strategy("cpu", "fp32"))
    assert Checkpoints(tmp_path, "loss", "min", 1).restore(ours, {}) == 1
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    shutil.rmtree(tmp_path)
    states = ours.optimizers["model"].state
    assert len(states) == 2 and all(state["step"] == 1 and state["exp_avg"].abs().sum() > 0 for state in states.values())
