"""A rank that computes more slowly than the others is named."""

import time

import pytest
import torch
from torch import nn

from snaketrain.extras.slow_ranks.slow_ranks import Timer, times_as_long
from snaketrain.training.callbacks import Callback, Callbacks

STEADY, SLOW = [1.0] * 20, [1.5] * 20


@pytest.mark.parametrize(
    ("seconds", "stages", "slow"),
    [
        ([STEADY, STEADY, SLOW, STEADY], 1, {2: 1.5}),
        ([STEADY, SLOW], 1, {1: 1.5}),  # of two ranks, one is compared with the faster one
        ([STEADY, STEADY, [1.15] * 20], 1, {}),
        ([STEADY, STEADY, [1.0] * 16 + [100.0] * 4], 1, {}),  # not in most steps
        ([STEADY, STEADY, SLOW, SLOW], 2, {}),  # the second stage of a pipeline has more to compute
        ([STEADY, STEADY, SLOW, [3.0] * 20], 2, {3: 2.0}),
        ([[*range(1, 21)], [*range(1, 21)], [1.3 * step for step in range(1, 22)]], 1, {2: 1.3}),  # steps of several lengths
    ],
)
def test_a_rank_is_slow_in_most_steps_compared_with_those_that_compute_the_same(seconds, stages, slow):
    found = {rank: each.times for rank, each in times_as_long(seconds, stages) if each.in_most_steps}
    assert found == pytest.approx(slow)


class Sleeping(nn.Linear):
    def forward(self, inputs):
        time.sleep(0.01)
        return super().forward(inputs)


@pytest.mark.parametrize("compiled", [False, True])
def test_forward_passes_are_timed_while_training_and_only_in_steps_that_are(compiled):
    part, timer = Sleeping(2, 2), Timer()
    if compiled:
        part.compile(backend="eager")
    timer.watch(part)
    inputs = torch.zeros(1, 2)
    plain = part(inputs)
    timer.on = True
    timer.end_step()
    assert timer.next_seconds() is None  # nothing was timed
    part.eval()(inputs)
    assert torch.equal(part.train()(inputs), plain)
    part(inputs)
    timer.end_step()
    assert 0.02 <= timer.next_seconds() < 5
    assert timer.next_seconds() is None


class Counting(Callback):
    def __init__(self, *numbers: float):
        self.numbers, self.sums = numbers, None

    def exchange(self, state):
        return self.numbers

    def on_exchange(self, state, sums):
        self.sums = sums


def test_each_callback_gets_the_sums_of_its_own_numbers():
    one, none, two = Counting(1.0), Callback(), Counting(2.0, 3.0)
    callbacks = Callbacks([one, none, two])
    callbacks.on_exchange(None, [2 * number for number in callbacks.exchange(None)])
    assert (one.sums, two.sums) == ([2.0], [4.0, 6.0])
