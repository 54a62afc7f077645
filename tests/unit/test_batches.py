"""Which examples are in which step, on any number of processes, and when evaluations and saves happen."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from snaketrain.config.schema import Train
from snaketrain.data.loading.batches import Batches, in_order, shard_batch
from snaketrain.training import schedules
from snaketrain.training.evaluation import batches_of
from snaketrain.training.plan import Plan, make_schedule

SIZES = [(1, 1), (1, 8), (7, 8), (8, 8), (9, 8), (103, 8), (1000, 3), (257, 1)]


def lengths(examples: int) -> np.ndarray:
    return np.random.default_rng(examples).integers(3, 60, examples)


def epoch_batches(lengths: np.ndarray, size: int, seed: int, epoch: int) -> list[np.ndarray]:
    return Batches(lengths, seed, size).of(epoch)


def plan_of(train: Train, examples: int) -> Plan:
    return Plan.of(train, lengths(examples))


@pytest.mark.parametrize(("examples", "size"), SIZES)
def test_every_example_occurs_once_in_an_epoch(examples, size):
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
def test_a_batch_is_split_among_ranks_exactly(world_size, pieces):
    known = lengths(103)
    for batch in epoch_batches(known, 12, 42, 0):
        dealt = [shard_batch(batch, pieces, rank, world_size) for rank in range(world_size)]
        assert {len(share) for share in dealt} == {pieces}
        assert sorted(i for share in dealt for piece in share if not piece.filler for i in piece.ids) == sorted(batch)
        assert all(piece.ids and set(piece.ids) <= set(batch) for share in dealt for piece in share)


def test_a_batch_with_fewer_examples_than_processes_is_padded():
    dealt = [shard_batch(np.array([5, 2]), 2, rank, 3) for rank in range(3)]
    assert [[piece.filler for piece in share] for share in dealt] == [[False, True], [False, True], [True, True]]


@pytest.mark.parametrize("per_epoch_evaluations", [1, 2, 3, 5])
@pytest.mark.parametrize("examples", [8, 50, 103])
def test_evaluations_occur_as_often_as_configured_and_at_the_end(per_epoch_evaluations, examples):
    train = Train(batch_size=8, epochs=3, evaluations_per_epoch=per_epoch_evaluations)
    plan = plan_of(train, examples)
    at = [step for step in range(1, plan.steps + 1) if plan.evaluates_at(step)]
    assert len(at) == 3 * min(per_epoch_evaluations, plan.epoch_ends[0])
    assert at[-1] == plan.steps
    assert set(plan.epoch_ends) <= set(at)


@pytest.mark.parametrize(("epochs", "steps_expected"), [(0.5, 6), (2.5, 32), (0.001, 1)])
def test_parts_of_epochs_end_with_an_evaluation(epochs, steps_expected):
    plan = plan_of(Train(batch_size=8, epochs=epochs), 103)
    assert plan.steps == steps_expected
    assert plan.evaluates_at(plan.steps)


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5, 0.99])
def test_linear_equals_the_schedule_of_transformers(warmup):
    plan = plan_of(Train(batch_size=8, epochs=4, warmup=warmup, learning_rate=0.01), 103)
    total, rising = plan.steps, round(52 * warmup)
    assert (total, plan.warmup_steps) == (52, rising)
    for step in range(1, total + 1):
        done = step - 1  # get_linear_schedule_with_warmup counts the updates before this one
        share = done / max(1, rising) if done < rising else max(0.0, (total - done) / max(1, total - rising))
        assert plan.learning_rate_at(step) == pytest.approx(0.01 * share)


def test_warmup_counts_steps_from_one():
    assert plan_of(Train(batch_size=8, epochs=4, warmup=7), 103).warmup_steps == 7


def test_a_warmup_as_long_as_the_training_is_refused():
    assert plan_of(Train(batch_size=8, epochs=1, warmup=9), 80).warmup_steps == 9
    with pytest.raises(SystemExit, match="train.warmup: 10 steps are not fewer than the training has, 10"):
        plan_of(Train(batch_size=8, epochs=1, warmup=10), 80)


def test_a_number_of_steps_instead_of_epochs():
    plan = plan_of(Train(batch_size=8, steps=30), 103)
    assert (plan.steps, plan.epoch_ends) == (30, (13, 26, 39))
    assert [step for step in range(1, 31) if plan.evaluates_at(step)] == [13, 26, 30]
    assert plan.epochs_done(13) == 1 and plan.epochs_done(20) == pytest.approx(1 + 7 / 13)


def test_evaluate_every_counts_steps():
    plan = plan_of(Train(batch_size=8, steps=30, evaluate_every=7), 103)
    assert [step for step in range(1, 31) if plan.evaluates_at(step)] == [7, 14, 21, 28, 30]
    assert [step for step in range(1, 31) if plan.saves_at(step)] == [7, 14, 21, 28, 30]


@pytest.mark.parametrize(("cadence", "saved"), [({"save_every": 10}, [10, 20, 30, 35]), ({"save_every_minutes": 2.5}, [35])])
def test_saves_have_a_cadence_of_their_own(cadence, saved):
    plan = plan_of(Train(batch_size=8, steps=35, evaluate_every=7, **cadence), 103)
    assert [step for step in range(1, 36) if plan.saves_at(step)] == saved


@pytest.mark.parametrize("padded", [True, False])
def test_batch_tokens_limits_the_tokens_of_a_batch(padded):
    known = lengths(1000)
    batches = Batches(known, 42, 1, tokens=400, padded=padded).of(0)
    assert sorted(np.concatenate(batches)) == list(range(1000))
    costs = [known[b].max() * len(b) if padded else known[b].sum() for b in batches]
    assert max(costs) <= 400 and np.mean(costs) > 330
    assert Batches(known, 42, 1, tokens=400, padded=padded).count(0) == len(batches)


@pytest.mark.parametrize("size", [1, 16, 1000])
def test_evaluations_respect_batch_tokens(size):
    known = lengths(1000)
    batches = in_order(known, size, tokens=400)
    assert sorted(np.concatenate(batches)) == list(range(1000))
    assert max(known[b].max() * len(b) for b in batches) <= 400 and max(map(len, batches)) <= size
    assert sum(known[b].max() * len(b) for b in batches) > 0.85 * sum(min(400, size * known[b].max()) for b in batches)
    assert [len(b) for b in in_order(np.array([5, 500, 5]), 8, tokens=100)] == [1, 2]


@pytest.mark.parametrize("padding", [0, 32, 10_000])
def test_a_batch_of_an_evaluation_ends_where_its_padding_would_exceed_the_limit(padding):
    known = lengths(300)
    batches = in_order(known, 64, padding=padding)
    assert np.concatenate(batches).tolist() == np.argsort(-known, kind="stable").tolist()
    padded = [known[batch].max() * len(batch) - known[batch].sum() for batch in batches]
    assert max(padded) <= padding
    for batch, following in itertools.pairwise(batches):
        more = np.append(batch, following[0])
        assert len(batch) == 64 or known[more].max() * len(more) - known[more].sum() > padding


@pytest.mark.parametrize(("device", "ranks", "most"), [("cpu", 1, 12), ("cpu", 3, 37), ("cuda", 1, 64)])
def test_an_evaluation_on_a_cpu_takes_fewer_examples_at_a_time(device, ranks, most):
    strategy = SimpleNamespace(device=torch.device(device), data_parallel_size=ranks)
    data = SimpleNamespace(lengths=np.full(100, 81))
    assert [len(batches_of(data, strategy, 64, tokens)[0]) for tokens in (None, 162)] == [most, 2]


def test_an_example_longer_than_the_budget_is_a_batch_of_its_own():
    assert sorted(map(len, Batches(np.array([5, 500, 5]), 42, 1, tokens=100).of(0))) == [1, 2]


@pytest.mark.parametrize(
    ("schedule", "warmup", "same_rates"),
    [("constant", 0, True), ("constant", 5, True), ("constant", 0.1, False), ("linear", 0, False), ("inverse_square_root", 3, True)],
)
def test_rates_that_do_not_depend_on_the_end(schedule, warmup, same_rates):
    short, long = (plan_of(Train(batch_size=8, epochs=epochs, warmup=warmup, schedule=schedule), 103) for epochs in (2, 6))
    same = all(short.learning_rate_at(step) == long.learning_rate_at(step) for step in range(1, short.steps + 1))
    assert same == same_rates


def test_warmup_stable_decay():
    made = make_schedule(schedules.warmup_stable_decay, {"decay": 0.25})
    assert [made(done, 100) for done in (0, 75, 80, 99)] == pytest.approx([1.0, 1.0, 0.8, 0.04])
