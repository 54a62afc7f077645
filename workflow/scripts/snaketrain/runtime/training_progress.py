"""The progress of a training in one line, from the events of its journal: for its own log and the console of the workflow."""

import re

from snaketrain.runtime.journal import Event
from snaketrain.runtime.rounding import rounded, spoken

LINE = re.compile(r"\S.*  \d+/(\d+|\?)(  |$)")  # of a progress in a log
NEWEST = 0.3  # the weight of the newest steps in the moving average of the speed
WORKING = ("steps", "data_wait")  # the activities of every step; the others occur now and then


class TrainingProgress:
    def __init__(self, run: str):
        self.run = run
        self.steps: int | None = None
        self._begin({"resume_step": 0})

    def add(self, event: Event) -> None:
        if event["event"] == "attempt":
            self._begin(event)
        elif event["event"] == "train":
            self._train(event)
        elif event["event"] == "eval":
            metrics = event["metrics"]
            named = self.metric if self.metric in metrics else next((name for name in metrics if name != "loss"), "loss")
            self.evaluated = f"dev {spoken(named)} {rounded(metrics[named])}" if named in metrics else ""

    @property
    def figures(self) -> str:
        """`60/126  48 %  loss 0.482  dev accuracy 0.790  eta 0:40`."""
        share = f"{min(round(100 * self.step / self.steps), 100 if self.step >= self.steps else 99)} %" if self.steps else ""
        loss = f"loss {rounded(self.loss)}" if self.loss is not None else ""
        left = self.seconds_left
        eta = f"eta {duration(left)}" if left else ""
        return "  ".join(filter(None, (f"{self.step}/{self.steps or '?'}", share, loss, self.evaluated, eta)))

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
        self.loss: float | None = None
        self.evaluated = ""
        self.pace: float | None = None  # seconds per step, without evaluating and saving
        self._worked = self._besides = 0.0  # seconds of this attempt

    def _train(self, event: Event) -> None:
        spent, taken = event.get("spent", {}), event["step"] - self.step
        worked = sum(spent.get(activity, 0.0) for activity in WORKING)
        if taken > 0 and spent:
            newest = (worked - self._worked) / taken
            self.pace = newest if self.pace is None else NEWEST * newest + (1 - NEWEST) * self.pace
        self.step, self.loss = event["step"], event["metrics"].get("loss")
        self._worked, self._besides = worked, sum(spent.get(activity, 0.0) for activity in ("evaluation", "saving"))


def duration(seconds: float) -> str:
    """`0:40`, `12:05`, `3:07:00`."""
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
