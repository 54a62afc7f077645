"""Time limits grow with a slow or busy machine, and never shrink."""

import os
import types

import limits
import pytest


@pytest.mark.parametrize(
    ("measured", "load", "slowness"), [(0.5, 0.1, 1), (1.0, 2.0, 1), (3.0, 0.5, 3), (1.5, 10.0, 5), (1.0, 500.0, limits.MOST)]
)
def test_limits_follow_the_slower_of_measured_speed_and_load(monkeypatch, measured, load, slowness):
    monkeypatch.setattr(limits, "measured", lambda: measured)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert limits.slowness() == slowness
    assert limits.seconds(30) == 30 * slowness and limits.whole_seconds(0.1) == -(-slowness // 10)


def test_a_limit_grows_with_the_load_while_something_is_waited_for(monkeypatch):
    now, load = [0.0], [1.0]

    def sleep(_):
        now[0] += 40
        load[0] = 4.0

    monkeypatch.setattr(limits, "slowness", lambda: load[0])
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(limits.time, "sleep", sleep)
    assert limits.until(lambda: now[0] == 120 and "here", 60) == "here"
    with pytest.raises(AssertionError, match="waited 240 seconds in vain .slowness 4.0"):
        limits.until(lambda: None, 60)


def test_a_process_that_ends_is_not_waited_for():
    with pytest.raises(AssertionError, match="it ended early, with 3\nits log"):
        limits.until(lambda: False, 60, types.SimpleNamespace(poll=lambda: 3, returncode=3), lambda: "its log")
