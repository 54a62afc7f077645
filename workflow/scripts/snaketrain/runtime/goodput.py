"""What a training spends its time on: measured by the first process, written into the journal, and added up from there.

A process is always in exactly one activity, so that they add up to the wall time by themselves. On a GPU the data wait and the
steps are what the process sees of them: the GPU may still be at work while the next batch is being made.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator

from snaketrain.runtime.journal import Event

ACTIVITIES = ("startup", "data_wait", "steps", "evaluation", "saving")
AROUND = ("queue", "away", "recomputed")  # in the queue of a cluster, between two attempts, and what the later one did again


class Clock:
    """Counts the seconds of each activity, from the start of the process on."""

    def __init__(self, began: float):
        """`began` as time.time() tells it."""
        self.seconds = dict.fromkeys(ACTIVITIES, 0.0) | {"startup": time.time() - began}
        self.activity, self.since = "startup", time.perf_counter()

    def to(self, activity: str) -> None:
        now = time.perf_counter()
        self.seconds[self.activity] += now - self.since
        self.activity, self.since = activity, now

    @contextlib.contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Go to an activity, and back to the one before."""
        before = self.activity
        self.to(activity)
        yield
        self.to(before)

    def spent(self) -> dict[str, float]:
        """Seconds of all activities until now."""
        self.to(self.activity)
        return {activity: round(seconds, 3) for activity, seconds in self.seconds.items()}


def goodput(events: Iterable[Event]) -> dict[str, float]:
    """Seconds of each activity, of what is around them, and of the whole; and the share of useful steps in the whole.

    Steps that an earlier attempt had taken already, and all that goes with them, count as recomputed. Empty where a journal
    does not tell how the time was spent.
    """
    seconds = dict.fromkeys((*AROUND, *ACTIVITIES), 0.0)
    reached, step, furthest, last = 0, 0, 0, None
    spent: dict[str, float] = {}
    evaluated, seen = -1, -1  # the last step that was, in earlier attempts and until now: the next attempt may evaluate the last step
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
    """How much of the steps after `first` up to `last` lies within what was reached before."""
    if first == last:
        return float(last <= reached and reached > 0)
    return min(1.0, max(0.0, (reached - first) / (last - first)))
