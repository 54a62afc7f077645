"""How a training spends its time: measured by rank 0, written to the journal, and summed up from there.

A process is always in exactly one activity, so that they add up to the wall time. On a GPU, data wait and steps are as seen by
the host: the GPU may still be computing while the next batch is prepared.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator

from snaketrain.runtime.journal import Event

ACTIVITIES = ("startup", "data_wait", "steps", "evaluation", "saving")
AROUND = ("queue", "away", "recomputed")  # queued on a cluster, between two attempts, and work repeated by a later attempt


class Clock:
    """Counts the seconds of each activity since the start of the process."""

    def __init__(self, began: float):
        """`began`: a value of time.time()."""
        self.seconds = dict.fromkeys(ACTIVITIES, 0.0) | {"startup": time.time() - began}
        self.activity, self.since = "startup", time.perf_counter()

    def to(self, activity: str) -> None:
        now = time.perf_counter()
        self.seconds[self.activity] += now - self.since
        self.activity, self.since = activity, now

    @contextlib.contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Switch to an activity, and back afterwards."""
        before = self.activity
        self.to(activity)
        yield
        self.to(before)

    def spent(self) -> dict[str, float]:
        """Seconds of all activities until now."""
        self.to(self.activity)
        return {activity: round(seconds, 3) for activity, seconds in self.seconds.items()}


def goodput(events: Iterable[Event]) -> dict[str, float]:
    """Seconds of each activity, of what is around them, and in all; and goodput, the share of useful steps.

    Steps that an earlier attempt had already taken, with their saving and evaluation, count as recomputed. Empty if the journal
    does not record how the time was spent.
    """
    seconds = dict.fromkeys((*AROUND, *ACTIVITIES), 0.0)
    reached, step, furthest, last = 0, 0, 0, None
    spent: dict[str, float] = {}
    evaluated, seen = (
        -1,
        -1,
    )  # the last evaluated step, in earlier attempts and until now: an attempt may only have to evaluate its last step
    for event in events:
        if event.get("event") == "attempt" and "began" in event:
            queued = event.get("queued_seconds") or 0.0
            gap = event["began"] - last if last else queued
            seconds["queue"] += min(queued, gap)
            seconds["away"] += gap - min(queued, gap)
            reached, step, spent, last = furthest, event["resume_step"], {}, event["began"]
            evaluated = seen
        elif "spent" in event and last:
            there = event["step"]
            again = _share_below(reached, step, there)
            if event["event"] == "eval":
                seen = max(seen, there)
                again = again if there > step else float(there <= evaluated)
            for activity, value in event["spent"].items():
                passed = value - spent.get(activity, 0.0)
                lost = 0.0 if activity == "startup" else again * passed
                seconds["recomputed"] += lost
                seconds[activity] += passed - lost
                last += passed
            step, furthest, spent = there, max(furthest, there), event["spent"]
    whole = sum(seconds.values())
    return seconds | {"wall": whole, "goodput": seconds["steps"] / whole} if whole else {}


def _share_below(reached: int, first: int, last: int) -> float:
    """The share of the steps after `first` up to `last` that an earlier attempt had already reached."""
    if first == last:
        return float(last <= reached and reached > 0)
    return min(1.0, max(0.0, (reached - first) / (last - first)))
