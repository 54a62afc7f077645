"""The time of a training by activity, from its journal: every second counts once, even if steps were repeated."""

import pytest

from snaketrain.runtime.journal import ACTIVITIES, Clock, goodput


def attempt(began: float, resume_step: int = 0, **more) -> dict:
    return {"event": "attempt", "began": began, "resume_step": resume_step, **more}


def line(step: int, **spent: float) -> dict:
    return {"event": "train", "step": step, "spent": dict.fromkeys(ACTIVITIES, 0.0) | spent}


def test_an_attempt_that_waited_in_a_queue():
    found = goodput([attempt(100.0, queued_seconds=30.0), line(10, startup=5.0, steps=8.0), line(20, startup=5.0, steps=16.0, saving=1.0)])
    assert found["queue"] == 30 and found["startup"] == 5 and found["steps"] == 16 and found["saving"] == 1
    assert found["wall"] == 52 and found["goodput"] == pytest.approx(16 / 52)


def test_steps_repeated_by_a_later_attempt_count_as_recomputed():
    events = [
        attempt(100.0),
        line(10, startup=4.0, steps=10.0),
        line(20, startup=4.0, steps=20.0),  # killed some time after 124
        attempt(130.0, 10, queued_seconds=2.0),
        line(15, startup=3.0, steps=5.0),  # 11 to 15: again
        line(25, startup=3.0, steps=15.0, data_wait=2.0),  # 16 to 20 again, 21 to 25 for the first time
        line(25, startup=3.0, steps=15.0, data_wait=2.0, saving=1.0) | {"event": "end"},
    ]
    found = goodput(events)
    assert found["recomputed"] == 5 + 6
    assert found["steps"] == 20 + 5 and found["data_wait"] == 1 and found["startup"] == 7 and found["saving"] == 1
    assert found["queue"] == 2 and found["away"] == 4
    assert found["wall"] == 151 - 100


def test_an_evaluation_deferred_by_a_stop_is_not_counted_as_recomputed():
    events = [
        attempt(100.0),
        line(0, evaluation=1.0) | {"event": "eval"},
        line(10, evaluation=1.0, steps=10.0) | {"event": "end"},  # stopped, and not evaluated
        attempt(120.0, 10),
        line(10, evaluation=3.0) | {"event": "eval"},
        line(20, evaluation=3.0, steps=10.0),
        line(20, evaluation=6.0, steps=10.0) | {"event": "eval"},  # killed before it was saved
        attempt(140.0, 10),
        line(20, steps=10.0),
        line(20, steps=10.0, evaluation=3.0) | {"event": "eval"},
    ]
    found = goodput(events)
    assert (found["evaluation"], found["recomputed"]) == (1 + 3 + 3, 10 + 3)


def test_a_journal_without_times():
    assert goodput([{"event": "attempt", "attempt": 1}, {"event": "train", "step": 5, "metrics": {"loss": 1.0}}]) == {}


def test_a_clock_is_always_in_one_activity(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    clock = Clock(998.0)
    clock.to("steps")
    now[0] += 5
    with clock.during("evaluation"):
        now[0] += 3
    now[0] += 6
    assert clock.spent() == {"startup": 2.0, "data_wait": 0.0, "steps": 11.0, "evaluation": 3.0, "saving": 0.0}
