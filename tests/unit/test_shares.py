"""The work of several processes, done in this one: their losses add up to the total, and each draws its own dropout."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from points import BATCH, gradients, make, module_of
from torch import Tensor

from snaketrain.strategies.base import Strategy
from snaketrain.training.evaluation import evaluate
from snaketrain.training.state import seed_step
from snaketrain.training.trainer import Trainer


class Share(Strategy):
    """One of several processes, which knows the counts of the others without communicating."""

    def __init__(self, rank: int, world_size: int, counted: int = BATCH):
        super().__init__("cpu", "fp32")
        self.rank, self.world_size, self.counted = rank, world_size, counted

    def all_reduce_scalars_ahead(self, *numbers: float) -> Callable[[], list[float]]:
        return lambda: [self.counted, 0, 0]


@pytest.mark.parametrize(("world_size", "accumulate"), [(2, 1), (2, 3), (3, 2), (5, 3)])
def test_the_shares_of_a_batch_add_up_to_the_gradient_of_its_mean(tmp_path, world_size, accumulate):
    """With five processes of three microbatches each, most microbatches are fillers."""
    alone = make(tmp_path)
    counted = len(alone.plan.batches.of(0)[0])
    shares = [gradients(make(tmp_path, strategy=Share(rank, world_size, counted), accumulate=accumulate)) for rank in range(world_size)]
    for name, whole in gradients(alone).items():
        torch.testing.assert_close(sum(share[name] for share in shares), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_the_shares_of_an_evaluation_add_up(tmp_path, world_size):
    sums = [evaluated_sums(make(tmp_path, strategy=Share(rank, world_size))) for rank in range(world_size)]
    whole = evaluated_sums(make(tmp_path))
    assert whole["count"] == 21
    assert {name: sum(share[name] for share in sums) for name in whole} == pytest.approx(whole)


def evaluated_sums(training: Trainer) -> dict[str, float]:
    training.state.task.measure = lambda sums: {name: float(total) for name, total in sums.items()}
    return evaluate(training.state, training.data.dev, 10)


def test_processes_drop_different_units_and_each_the_same_ones_again(tmp_path):
    def dropped(rank: int, step: int, seed: int = 1) -> tuple[bool, ...]:
        """Which units of the first example of a step."""
        training = make(tmp_path, dropout=0.5, strategy=Share(rank, 2), seed=seed)
        module_of(training)[1].register_forward_hook(lambda module, given, found: seen.append(found[0] == 0))
        seen: list[Tensor] = []
        with training.planned.loading():
            training.train_step(replace(training.planned.upcoming, step=step))
        return tuple(seen[0].tolist())

    moments = [(rank, step, seed) for rank in (0, 1) for step in (1, 2) for seed in (1, 2)]
    masks = [dropped(*moment) for moment in moments]
    assert len(set(masks)) == len(moments)
    assert [dropped(*moment) for moment in moments] == masks


def test_each_objective_and_each_step_draws_its_own_dropout():
    def drawn(step: int, objective: int) -> tuple[float, ...]:
        seed_step(1, step, objective, Strategy("cpu", "fp32"))
        return tuple(torch.rand(4).tolist())

    assert drawn(3, 0) == drawn(3, 0)
    assert len({drawn(step, objective) for step in range(3) for objective in range(3)}) == 9
