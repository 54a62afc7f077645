"""When early stopping ends a training."""

import math

import pytest

from snaketrain.strategies.base import Strategy
from snaketrain.tasks.base import Task
from snaketrain.training.checkpoints.ranking import Selection
from snaketrain.training.early_stopping import EarlyStopping
from snaketrain.training.state import TrainState


@pytest.mark.parametrize(
    ("mode", "values", "min_change", "last"),
    [
        ("min", [3, 2, 1, 1, 1], 0.2, 5),  # two in a row without improvement
        ("min", [3, 4, 2, 5, 2, 1], 0.2, 5),
        ("max", [1, 2, 3, 2, 1, 9], 0.2, 5),
        ("max", [1, math.nan, 2, math.nan, math.nan], 0.2, 5),
        ("max", [1, math.inf, 2, 3, math.inf, -math.inf], 0.2, 6),  # an infinity is no improvement, and 2 is better than 1
        ("min", [5, 4, 3, 2, 1], 0.2, None),
        ("min", [5, 4.95, 4.9, 1], 0.2, 3),  # each by less than min_change
        ("min", [0.5, 0.5, 0.5], 0.0, 3),  # an equal one is no improvement
        ("max", [0.5, 0.5, 0.5], 0.0, 3),
    ],
)
def test_it_stops_at_the_second_evaluation_in_a_row_without_improvement(mode, values, min_change, last):
    early, given_up = EarlyStopping(Selection("metric", mode), 2, min_change), None
    for number, value in enumerate(values, start=1):
        state = TrainState(Task(), Strategy("cpu", "fp32"), {}, step=number)
        early.on_evaluation(state, {"metric": value})
        given_up = given_up or (number if state.finished_early else None)
    assert given_up == last
