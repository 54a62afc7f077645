"""The output of a running training: delayed, bundled but complete to TensorBoard; an occasional line to its log."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from snaketrain.runtime.journal import Journal
from snaketrain.strategies.base import Strategy
from snaketrain.tasks.base import Task
from snaketrain.training import watching
from snaketrain.training.state import TrainState
from snaketrain.training.watching import Progress, TensorBoard


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tensorboard"


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "journal.jsonl")


class Shown:
    """The callback, as a training calls them."""

    def __init__(self, folder: Path, rank: int = 0, start: int = 0):
        strategy = Strategy("cpu", "fp32")
        strategy.rank = rank
        self.state = TrainState(Task(), strategy, {}, step=start)
        self.tensorboard = TensorBoard(folder)
        self.tensorboard.on_train_start(self.state)

    def show(self, step: int, figures: dict[str, float]) -> None:
        self.state.step = step
        self.tensorboard.on_log(self.state, figures)

    def evaluated(self, step: int, metrics: dict[str, float]) -> None:
        self.state.step = step
        self.tensorboard.on_evaluation(self.state, metrics)

    def close(self) -> None:
        self.tensorboard.on_train_end(self.state)


def reported(folder, tag: str) -> dict[int, float]:
    events = EventAccumulator(str(folder)).Reload()
    assert tag in events.Tags()["scalars"]
    return {event.step: event.value for event in events.Scalars(tag)}


def figures(loss: float) -> dict[str, float]:
    return {"loss": loss, "examples_per_second": 10.0}


def test_every_fast_step_reaches_tensorboard(folder):
    shown = Shown(folder)
    for step in range(10, 101, 10):
        shown.show(step, figures(step / 2))
        if step == 50:
            shown.evaluated(step, {"accuracy": 0.5})
    shown.close()
    assert reported(folder, "train/loss") == {step: step / 2 for step in range(10, 101, 10)}
    assert reported(folder, "eval/accuracy") == {50: 0.5}


def test_a_line_that_waits_for_more_is_written_at_the_end_with_the_time_of_its_event(folder, monkeypatch):
    shown = Shown(folder)
    monkeypatch.setattr("time.time", lambda: 1000.0)
    shown.show(10, figures(2.0))
    assert shown.tensorboard.waiting
    monkeypatch.setattr("time.time", lambda: 2000.0)
    shown.close()
    [event] = EventAccumulator(str(folder)).Reload().Scalars("train/loss")
    assert (event.step, event.value, event.wall_time) == (10, 2.0, 1000.0)


def test_a_log_has_a_line_every_ten_seconds_and_for_each_evaluation(journal, monkeypatch, caplog):
    progress, lines = Progress("a run", journal), lambda: [record.getMessage() for record in caplog.records]
    caplog.set_level("INFO")
    journal.begin(0, steps=100)
    began = progress.shown
    for seconds in (4.0, 8.0, 11.0, 15.0):
        monkeypatch.setattr("time.monotonic", lambda now=began + seconds: now)
        journal.write("train", step=int(seconds), metrics={"loss": 0.25})
    journal.write("eval", step=15, metrics={"accuracy": 0.9})
    assert lines() == ["a run  11/100  11 %  loss 0.250", "a run  15/100  15 %  loss 0.250  dev accuracy 0.900"]


def test_a_terminal_has_one_line_cut_to_its_width(journal, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    progress = Progress("a run", journal)
    journal.begin(0, steps=100)
    monkeypatch.setattr("time.monotonic", lambda now=progress.shown: now + 1.0)
    journal.write("train", step=10, metrics={"loss": 0.25})
    progress.on_train_end(None)
    assert capsys.readouterr().err == "\r\x1b[Ka run  10/100  10 %\r\n"


def test_resuming_replaces_what_comes_after_the_checkpoint(folder):
    for start, loss, steps in ((0, 1.0, (10, 20, 30)), (20, 2.0, (30, 40))):
        shown = Shown(folder, start=start)
        for step in steps:
            shown.show(step, figures(loss))
        shown.close()
    assert reported(folder, "train/loss") == {10: 1.0, 20: 1.0, 30: 2.0, 40: 2.0}


def test_another_process_shows_nothing(folder, capsys):
    shown = Shown(folder, rank=1)
    shown.show(100, figures(1.0))
    shown.evaluated(100, {"accuracy": 0.5})
    shown.close()
    assert not folder.exists() and not capsys.readouterr().err


def test_without_tensorboard_a_training_says_what_to_install(folder, monkeypatch, caplog):
    monkeypatch.setattr(watching, "find_spec", lambda name: None)
    caplog.set_level("INFO")
    callback = TensorBoard(folder)
    state = SimpleNamespace(rank=0, step=0)
    callback.on_train_start(state)
    callback.on_log(state, {"loss": 1.0})
    callback.on_train_end(state)
    assert "pip install tensorboard" in caplog.text and not folder.exists()
