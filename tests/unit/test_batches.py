"""Which examples make up which step, on any number of processes; and what happens at which step."""

import numpy as np
import pytest

from snaketrain import schedules
from snaketrain.data.batches import deal, epoch_batches, in_order, steps
from snaketrain.plan import Plan
from snaketrain.settings import Train

SIZES = [(1, 1), (1, 8), (7, 8), (8, 8), (9, 8), (103, 8), (1000, 3), (257, 1)]


def lengths(examples: int) -> np.ndarray:
    return np.random.default_rng(examples).integers(3, 60, examples)


@pytest.mark.parametrize(("examples", "size"), SIZES)
def test_every_example_comes_once_an_epoch(examples, size):
    for batches in (epoch_batches(lengths(examples), size, 42, 0), in_order(lengths(examples), size)):
        assert sorted(np.concatenate(batches)) == list(range(examples))
        assert sorted(map(len, batches), reverse=True) == [size] * (examples // size) + [examples % size] * (examples % size > 0)


def test_epochs_and_seeds_differ_and_repeat():
    def order(seed, epoch):
        return np.concatenate(epoch_batches(lengths(100), 8, seed, epoch)).tolist()

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1) and order(1, 0) != order(2, 0)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_a_batch_is_dealt_out_exactly(world_size, pieces):
    known = lengths(103)
    for batch in epoch_batches(known, 12, 42, 0):
        dealt = [deal(batch, known, pieces, rank, world_size) for rank in range(world_size)]
        assert {len(share) for share in dealt} == {pieces}
        assert sorted(i for share in dealt for piece in share if not piece.filler for i in piece.ids) == sorted(batch)
        assert all(piece.ids and set(piece.ids) <= set(batch) for share in dealt for piece in share)


def test_a_batch_smaller_than_the_processes_is_filled_up():
    dealt = [deal(np.array([5, 2]), lengths(9), 2, rank, 3) for rank in range(3)]
    assert [[piece.filler for piece in share] for share in dealt] == [[False, True], [False, True], [True, True]]


@pytest.mark.parametrize("first", [0, 1, 12, 13, 14, 30])
def test_a_resumed_training_goes_on_with_the_same_batches(first):
    whole, rest = (list(steps(lengths(103), 8, 42, start, 40)) for start in (0, first))
    assert [step for step, _ in rest] == list(range(first + 1, 41))
    assert all(a == b and np.array_equal(x, y) for (a, x), (b, y) in zip(whole[first:], rest, strict=True))


@pytest.mark.parametrize("per_epoch_evaluations", [1, 2, 3, 5])
@pytest.mark.parametrize("examples", [8, 50, 103])
def test_evaluations_come_as_often_as_asked_for_and_at_the_end(per_epoch_evaluations, examples):
    train = Train(batch_size=8, epochs=3, evaluations_per_epoch=per_epoch_evaluations)
    plan = Plan.of(train, examples, schedules.linear)
    at = [step for step in range(1, plan.steps + 1) if plan.evaluates_at(step)]
    assert len(at) == 3 * min(per_epoch_evaluations, plan.per_epoch)
    assert at[-1] == plan.steps
    assert {plan.per_epoch, 2 * plan.per_epoch} <= set(at)


@pytest.mark.parametrize(("epochs", "steps_expected"), [(0.5, 6), (2.5, 32), (0.001, 1)])
def test_parts_of_epochs_end_with_an_evaluation(epochs, steps_expected):
    plan = Plan.of(Train(batch_size=8, epochs=epochs), 103, schedules.linear)
    assert plan.steps == steps_expected
    assert plan.evaluates_at(plan.steps)


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5, 0.99])
def test_linear_is_the_schedule_of_transformers(warmup):
    plan = Plan.of(Train(batch_size=8, epochs=4, warmup=warmup, learning_rate=0.01), 103, schedules.linear)
    total, rising = plan.steps, round(52 * warmup)
    assert (total, plan.warmup_steps) == (52, rising)
    for step in range(1, total + 1):
        done = step - 1  # get_linear_schedule_with_warmup counts the updates before this one
        share = done / max(1, rising) if done < rising else max(0.0, (total - done) / max(1, total - rising))
        assert plan.learning_rate_at(step) == pytest.approx(0.01 * share)
