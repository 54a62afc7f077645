"""The line about a training, from the events of its journal."""

import pytest

from snaketrain.runtime.journal import TrainingProgress, duration
from snaketrain.runtime.strict_json import rounded


@pytest.fixture
def progress():
    found = TrainingProgress("pretrained")
    found.add({"event": "attempt", "resume_step": 0, "steps": 126, "metric": "accuracy"})
    return found


def train(step: int, loss: float, **spent: float) -> dict:
    return {"event": "train", "step": step, "metrics": {"loss": loss}, "spent": {"steps": 0.0, "data_wait": 0.0, **spent}}


def evaluation(**metrics: float) -> dict:
    return {"event": "eval", "step": 0, "metrics": metrics}


def test_a_line_has_step_loss_metric_and_time_left(progress):
    progress.add(evaluation(loss=0.5, macro_f1=0.8, accuracy=0.79))
    progress.add(train(60, 0.4817, steps=30.0, data_wait=6.0))
    assert progress.line == "pretrained  eta 0:40  60/126  48 %  loss 0.482  dev accuracy 0.790"


def test_an_evaluation_between_two_lines_of_the_journal_tells_the_step_too(progress):
    progress.add({**train(4, 0.5, steps=4.0), "event": "eval"})
    assert progress.line == "pretrained  eta 2:02  4/126  3 %  dev loss 0.500"
    progress.add(train(10, 0.4, steps=10.0))
    assert progress.pace == 1.0


def test_the_speed_is_a_moving_average_that_an_evaluation_does_not_spoil(progress):
    progress.add(train(10, 1.0, steps=10.0))
    progress.add(train(20, 1.0, steps=20.0, evaluation=100.0))
    assert progress.pace == pytest.approx(1.0)
    progress.add(train(30, 1.0, steps=40.0, evaluation=100.0))
    assert progress.pace == pytest.approx(0.7 * 1.0 + 0.3 * 2.0)


def test_the_time_left_includes_evaluations_as_so_far(progress):
    progress.add(train(63, 1.0, steps=63.0, evaluation=50.0, saving=13.0))
    assert progress.seconds_left == pytest.approx(126.0)


def test_a_resumed_training_resets_the_progress(progress):
    progress.add(evaluation(loss=0.5))
    progress.add(train(60, 0.5, steps=60.0))
    assert progress.evaluated == "dev loss 0.500"
    progress.add({"event": "attempt", "resume_step": 50, "steps": 126})
    assert progress.line == "pretrained  50/126  40 %" and progress.seconds_left is None
    progress.add(train(55, 0.5, steps=10.0))
    assert progress.pace == 2.0
    progress.add(evaluation(loss=0.4, spearman=0.3))
    assert progress.evaluated == "dev spearman 0.300"


def test_figures_are_written_as_in_the_table_of_the_comparison(progress):
    progress.add(evaluation(accuracy=319 / 400))
    assert progress.evaluated == "dev accuracy 0.798" == f"dev accuracy {rounded(0.7975)}"


def test_the_metric_that_selects_is_shown_also_if_it_is_the_loss():
    progress = TrainingProgress("small")
    progress.add({"event": "attempt", "resume_step": 0, "steps": 1000, "metric": "loss"})
    progress.add(evaluation(accuracy=0.9, loss=0.25))
    assert progress.evaluated == "dev loss 0.250"


def test_a_training_is_at_100_percent_at_its_end_alone(progress):
    progress.add({"event": "attempt", "resume_step": 999, "steps": 1000})
    assert progress.figures == "999/1000  99 %"


@pytest.mark.parametrize(("seconds", "shown"), [(0.4, "0:00"), (40, "0:40"), (725, "12:05"), (11220, "3:07:00")])
def test_durations(seconds, shown):
    assert duration(seconds) == shown
