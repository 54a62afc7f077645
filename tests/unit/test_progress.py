"""What is shown while a training runs comes late, in bundles, and is whole."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from snaketrain.training.callbacks.progress import Progress


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tensorboard"


def progress_of(folder, shows: bool = True, start: int = 0) -> Progress:
    progress = Progress("a run", steps=100, every_steps=10, tensorboard=folder, shows=shows)
    progress.start(start)
    return progress


def told(folder, tag: str) -> dict[int, float]:
    events = EventAccumulator(str(folder)).Reload()
    assert tag in events.Tags()["scalars"]
    return {event.step: event.value for event in events.Scalars(tag)}


def figures(loss: float) -> dict[str, float]:
    return {"loss": loss, "examples_per_second": 10.0}


def test_every_line_of_quick_steps_reaches_tensorboard(folder):
    progress = progress_of(folder)
    for step in range(10, 101, 10):
        progress.show(step, figures(step / 2))
        if step == 50:
            progress.evaluated(step, {"accuracy": 0.5})
    progress.close()
    assert told(folder, "train/loss") == {step: step / 2 for step in range(10, 101, 10)}
    assert told(folder, "eval/accuracy") == {50: 0.5}


def test_what_waited_when_the_training_stopped_is_written(folder):
    progress = progress_of(folder)
    progress.show(10, figures(2.0))
    assert progress.waiting, "one line alone waits for more"
    progress.close()
    assert told(folder, "train/loss") == {10: 2.0}


def test_a_line_says_when_it_was_told_and_not_when_it_was_written(folder, monkeypatch):
    progress = progress_of(folder)
    monkeypatch.setattr("time.time", lambda: 1000.0)
    progress.show(10, figures(2.0))
    monkeypatch.setattr("time.time", lambda: 2000.0)
    progress.close()
    [event] = EventAccumulator(str(folder)).Reload().Scalars("train/loss")
    assert event.wall_time == 1000.0


def test_slow_steps_are_shown_one_by_one(folder, monkeypatch, capsys):
    progress = progress_of(folder)
    for step in (10, 20):
        monkeypatch.setattr("time.monotonic", lambda step=step: progress.shown + 2)
        progress.show(step, figures(step))
        assert not progress.waiting and progress.bar.n == step
    progress.close()
    assert "loss 20.0000, 10 examples/s" in capsys.readouterr().err


def test_frequent_evaluations_do_not_keep_the_bar_waiting(folder, monkeypatch):
    progress = progress_of(folder)
    now = [progress.shown]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for step in (10, 20, 30):
        now[0] += 0.6
        progress.evaluated(step, {"accuracy": 0.5})
        progress.show(step, figures(1.0))
    assert progress.bar.n == 20
    progress.close()


def test_going_on_replaces_what_comes_after_the_checkpoint(folder):
    for start, loss, steps in ((0, 1.0, (10, 20, 30)), (20, 2.0, (30, 40))):
        progress = progress_of(folder, start=start)
        for step in steps:
            progress.show(step, figures(loss))
        progress.close()
    assert told(folder, "train/loss") == {10: 1.0, 20: 1.0, 30: 2.0, 40: 2.0}


def test_another_process_shows_nothing(folder, capsys):
    progress = progress_of(folder, shows=False)
    progress.show(100, figures(1.0))
    progress.evaluated(100, {"accuracy": 0.5})
    progress.close()
    assert not folder.exists() and not capsys.readouterr().err
