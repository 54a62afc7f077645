"""Which model is registered, and which becomes champion."""

import pytest

from snaketrain.extras.registry.registering import Contender, decide

FIRST = Contender("first", 0.8, "accuracy", "max", "d1")


def other(value: float, **changes) -> Contender:
    return Contender(**{"run": "other", "value": value, "metric": "accuracy", "mode": "max", "data": "d1"} | changes)


@pytest.mark.parametrize(
    ("new", "registered", "champion", "registers", "moves_alias", "reason"),
    [
        (FIRST, [], None, True, True, "the first model"),
        (other(0.9), [FIRST], FIRST, True, True, "better than 0.8 of first"),
        (other(0.8), [FIRST], FIRST, False, False, "not better than 0.8 of first"),
        (other(0.2, mode="min", metric="loss"), [other(0.3, mode="min", metric="loss")], other(0.3, mode="min", metric="loss"), True, True, "better"),
        (other(0.4, mode="min", metric="loss"), [other(0.3, mode="min", metric="loss")], other(0.3, mode="min", metric="loss"), False, False, "not"),
        (other(0.9, data="d2"), [FIRST], FIRST, True, False, "other data"),
        (other(0.9, metric="f1"), [FIRST], FIRST, True, False, "accuracy, not f1"),
        (other(0.85), [FIRST, other(0.7, data="d2")], other(0.7, data="d2"), True, False, "other data"),
        (other(0.9), [], other(float("nan"), metric="unknown", data="unknown"), True, False, "by hand"),
    ],
)  # fmt: skip
def test_decisions(new, registered, champion, registers, moves_alias, reason):
    found = decide(new, registered, champion)
    assert (found.registers, found.moves_alias) == (registers, moves_alias) and reason in found.reason
