"""The journal of a training, one JSON object per line: the source for MLflow, TensorBoard and the comparison.

Only rank 0 writes it; what concerns a single rank is in `logs/rank-N.jsonl`. Lines reach the file at once, so a killed process
loses nothing that it has written.
"""

import contextlib
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from snaketrain.runtime import strict_json
from snaketrain.runtime.credentials import hidden_in
from snaketrain.runtime.manifests import private
from snaketrain.runtime.strict_json import Json, JsonObject, rounded, spoken

Event = JsonObject
CHUNK_BYTES = 1_000_000  # read at a time from a long journal


class Journal:
    def __init__(self, path: Path, writes: bool = True, check: Callable[[], None] = lambda: None, about: Mapping[str, Json] | None = None):
        """`check` raises if this process must not write any more; `about` is recorded with the start of this attempt."""
        self.writes, self.attempt, self.check, self.about = writes, 1, check, about or {}
        self.listeners: list[Callable[[Event], None]] = []  # called with each event that was written
        if not writes:
            return
        if path.exists():
            with open(path, "rb+") as file:  # an attempt that crashed may have left half a line
                file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
            self.attempt = attempts_in(path) + 1
        self.one_at_a_time = threading.Lock()  # another thread records the machine's load
        self.file = open(path, "a", buffering=1, encoding="utf-8", opener=private)  # noqa: SIM115 - open as long as the training

    def begin(self, resume_step: int, **about: Json) -> None:
        """Write the first line of an attempt."""
        self.write("attempt", resume_step=resume_step, **about, **self.about)

    def write(self, event: str, **content: Json) -> None:
        if self.writes:
            self.check()
            with self.one_at_a_time:
                line = {"event": event, **hidden_in(content), "time": round(time.time(), 3), "attempt": self.attempt}
                self.file.write(as_line(line))
            for listener in self.listeners:
                listener(line)

    def sync(self) -> None:
        """Flush to disk, so that the lines survive a crash of the machine."""
        if self.writes:
            self.check()
            os.fsync(self.file.fileno())


def as_line(event: Event) -> str:
    return strict_json.dumps(event) + "\n"


def read_events(path: str | Path, offset: int = 0, at_most_bytes: int = -1) -> tuple[list[Event], int]:
    """The events after an offset, and the offset to continue from; an incomplete last line is left for later."""
    if not Path(path).is_file():
        return [], offset
    with open(path, "rb") as file:
        file.seek(offset)
        content = file.read(at_most_bytes) + file.readline()
    complete = content.rfind(b"\n") + 1
    events = []
    for line in content[:complete].splitlines():
        try:
            event = strict_json.loads(line)
        except ValueError:
            continue  # incomplete after a crash, and not repaired yet
        if isinstance(event, dict):
            events.append(event)
    return events, offset + complete


def all_events(path: str | Path) -> Iterator[Event]:
    """Iterates over the events of a journal of any length."""
    offset, further = -1, 0
    while further != offset:
        offset = further
        events, further = read_events(path, offset, CHUNK_BYTES)
        yield from events


def events_named(path: Path, name: str) -> Iterator[Event]:
    """Iterates over the rare events of a name, without parsing those between them."""
    beginning = f'{{"event": "{name}"'.encode()  # as `Journal.write` begins such a line
    if path.is_file():
        with open(path, "rb") as file:
            for line in file:
                if line.startswith(beginning) and line.endswith(b"\n"):
                    with contextlib.suppress(ValueError):  # incomplete after a crash
                        yield strict_json.loads(line)


def attempts_in(path: Path) -> int:
    return sum(1 for _ in events_named(path, "attempt"))


def last_attempt(path: Path) -> Event | None:
    """The line with which the last attempt began."""
    return next(iter(deque(events_named(path, "attempt"), maxlen=1)), None)


def executions(events: list[Event]) -> dict[int, JsonObject]:
    """How steps were computed, by the first of them: an attempt takes again the steps after the checkpoint that it resumes."""
    found: dict[int, JsonObject] = {}
    for event in events:
        if event.get("event") == "attempt" and "execution" in event:
            first = (event["resume_step"] or 0) + 1
            found = {step: each for step, each in found.items() if step < first} | {first: event["execution"]}
    return found


# --- How a training spends its time: measured by rank 0, written to the journal, and summed up from there.
#
# A process is always in exactly one activity, so that they add up to the wall time. On a GPU, data wait and steps are as seen by
# the host: the GPU may still be computing while the next batch is prepared.

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
    # the last evaluated step, in earlier attempts and until now: an attempt may only have to evaluate its last step
    evaluated, seen = -1, -1
    spent: dict[str, float] = {}
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


PROGRESS = re.compile(r"\S.*  \d+/(\d+|\?)(  |$)")  # a line of a log
NEWEST = 0.3  # the weight of the newest steps in the moving average of the speed
WORKING = ("steps", "data_wait")  # the activities of every step; the others occur now and then


class TrainingProgress:
    def __init__(self, run: str):
        self.run = run
        self.steps: int | None = None
        self.loss: float | None = None
        self._begin({"resume_step": 0})

    def add(self, event: Event) -> None:
        if event["event"] == "attempt":
            self._begin(event)
        elif event["event"] == "train":
            self._reach(event)
            self.loss = event["metrics"].get("loss")
        elif event["event"] == "eval":
            self._reach(event)  # it may have no line of its own: tracking.log_every_steps
            metrics = event["metrics"]
            named = self.metric if self.metric in metrics else next((name for name in metrics if name != "loss"), "loss")
            self.evaluated = f"dev {spoken(named)} {rounded(metrics[named])}" if named in metrics else ""

    @property
    def figures(self) -> str:
        """`eta 0:40  60/126  48 %  loss 0.482  dev accuracy 0.790`: what counts most first, since narrow terminals cut the rest."""
        share = f"{min(round(100 * self.step / self.steps), 100 if self.step >= self.steps else 99)} %" if self.steps else ""
        loss = f"loss {rounded(self.loss)}" if self.loss is not None else ""
        left = self.seconds_left
        eta = f"eta {duration(left)}" if left else ""
        return "  ".join(filter(None, (eta, f"{self.step}/{self.steps or '?'}", share, loss, self.evaluated)))

    @property
    def line(self) -> str:
        return f"{self.run}  {self.figures}"

    @property
    def seconds_left(self) -> float | None:
        """For the remaining steps at the current speed, with as much evaluating and saving as so far."""
        if self.pace is None or not self.steps:
            return None
        return (self.steps - self.step) * (self.pace + self._besides / max(1, self.step - self._first))

    def _begin(self, event: Event) -> None:
        self.step: int = event["resume_step"]
        self._first: int = self.step
        self.steps = event.get("steps", self.steps)
        self.metric: str = event.get("metric", "")  # that selects the checkpoint
        self.loss = None
        self.evaluated = ""
        self.pace: float | None = None  # seconds per step, without evaluating and saving
        self._worked = self._besides = 0.0  # seconds of this attempt

    def _reach(self, event: Event) -> None:
        spent, taken = event.get("spent", {}), event["step"] - self.step
        worked = sum(spent.get(activity, 0.0) for activity in WORKING)
        if taken > 0 and spent:
            newest = (worked - self._worked) / taken
            self.pace = newest if self.pace is None else NEWEST * newest + (1 - NEWEST) * self.pace
        self.step = max(self.step, event["step"])
        self._worked, self._besides = worked, sum(spent.get(activity, 0.0) for activity in ("evaluation", "saving"))


def duration(seconds: float) -> str:
    """`0:40`, `12:05`, `3:07:00`."""
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
