"""Checkpoints that are saved between evaluations, and resuming from them."""

import time
from types import SimpleNamespace

import pytest
from points import bits_of, make

from snaketrain.training import trainer
from snaketrain.training.callbacks import Callback
from snaketrain.training.state import StepOutcome, TrainState

AT_THE_END = {"evaluate_every": 15}  # and before the first step


def saved(training: trainer.Trainer) -> list[int]:
    return [line["step"] for line in training.journal.of("checkpoint")]


def test_save_every_saves_besides_the_best_and_the_last(tmp_path):
    training = make(tmp_path, save_every=4, learning_rate=0.5)
    training.fit()
    losses = {line["step"]: line["metrics"]["loss"] for line in training.journal.of("eval") if line["step"]}
    best = [step for step, loss in losses.items() if loss == min(loss for earlier, loss in losses.items() if earlier <= step)]
    assert {*best} - {4, 8, 12, 15} and {*losses} - {*best, 4, 8, 12, 15}  # some are saved as the best only, and some not at all
    assert saved(training) == sorted({4, 8, 12, 15, *best})
    kept = [int(path.name.removeprefix("step-")) for path in training.checkpoints.found()]
    assert kept == sorted({15, *sorted(losses, key=lambda step: losses[step])[:2]})


class Minute(Callback):
    """Each step takes one minute."""

    now = 0.0

    def on_step_end(self, state: TrainState, outcome: StepOutcome) -> None:
        self.now += 60


def test_save_every_minutes_saves_when_the_time_has_come(tmp_path, monkeypatch):
    clock = Minute()
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: clock.now, time=time.time))
    training = make(tmp_path, save_every_minutes=2.5, **AT_THE_END)
    training.callbacks.callbacks.append(clock)
    training.fit()
    assert saved(training) == [4, 8, 12, 15]  # decided while the step is computed, whose time the clock does not include yet


class Killed(BaseException):
    pass


class KilledAt(Callback):
    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, state: TrainState, outcome: StepOutcome) -> None:
        if state.step == self.step:
            raise Killed


def test_killed_between_two_evaluations_it_resumes_from_the_newest_checkpoint(tmp_path):
    options = {"dropout": 0.5, "save_every": 4} | AT_THE_END
    whole, killed = make(tmp_path / "whole", **options), make(tmp_path / "killed", **options)
    whole.fit()
    killed.callbacks.callbacks.append(KilledAt(10))
    with pytest.raises(Killed):
        killed.fit()
    killed.checkpoints.finish()  # a real kill would have stopped the thread that writes
    resumed = make(tmp_path / "killed", **options)
    resumed.fit()
    reported, expected = ([(line["step"], line["metrics"]["loss"]) for line in each.journal.of("train")] for each in (resumed, whole))
    assert reported == expected[8:]
    assert bits_of(resumed) == bits_of(whole)
