"""What running jobs write: how far a training is, from its journal; warnings, from its log."""

import os
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from snaketrain.runtime.journal import TrainingProgress, duration, last_attempt, read_events

WARNING = re.compile(r"^(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} )?(warning: .*)")
LINE_SECONDS = 10.0  # between two lines of a run, where they are not live
CLOCKS_DIFFER_SECONDS = 5.0  # of a file server, or a node of a cluster
LONGEST_WARNING = 300  # characters
LONGEST_NAME = 31  # in a live line, which is cut at the end of a terminal's row


@dataclass
class RunningJob:
    """A job from its start, or its submission, to its end."""

    number: int
    stage: str
    name: str  # of the run, the data set or the model
    log: Path
    folder: Path  # of its results
    started: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        from snaketrain.orchestration.stages import trains  # which reads the settings: other workflows do without

        self.trains = trains(self.stage)
        self.shown_at = time.monotonic()
        self.progress = TrainingProgress(self.name)
        self.has_progress = self.progress_is_new = self.has_begun = False
        self.warned: set[str] = set()
        self._looking = threading.Lock()
        self.journal = self.folder / "journal.jsonl"
        self._journal_read, self._log_read = _size(self.journal), _size(self.log)
        self._journal_file = _inode(self.journal)
        with suppress(OSError):  # the journal may be moved aside at this moment
            if self.trains and (attempt := last_attempt(self.journal)):
                self.progress.add(attempt)  # of a job that an earlier workflow has submitted

    @property
    def title(self) -> str:
        return f"{self.stage:17}  {self.name}".rstrip()

    @property
    def seconds(self) -> float:
        return time.time() - self.started

    @property
    def live_line(self) -> str:
        return f"{shortened(self.name)}  {self.progress.figures}" if self.has_progress else f"{self.title}  {duration(self.seconds)}"

    @property
    def last_written(self) -> float:
        return found.st_mtime if (found := _stat(self.log)) else 0.0

    @property
    def has_written(self) -> bool:
        """Whether its log is its own, and not of an earlier start."""
        return self.last_written >= self.started - CLOCKS_DIFFER_SECONDS

    def look(self) -> list[str]:
        """What is worth a line of its own: warnings, that a training resumes, and why it ended before its plan."""
        with self._looking:  # the thread that follows jobs looks, and the one that reports their ends
            return [*self._warnings(), *(self._events() if self.trains else ())]

    def due_line(self) -> str | None:
        """Where the training is, if that is new and has not been shown for a while."""
        is_over = self.progress.step == self.progress.steps  # which the line that ends the job says
        if is_over or not self.progress_is_new or time.monotonic() - self.shown_at < LINE_SECONDS:
            return None
        self.shown_at, self.progress_is_new = time.monotonic(), False
        return self.progress.line

    def _events(self) -> Iterator[str]:
        if (file := _inode(self.journal)) != self._journal_file or _size(self.journal) < self._journal_read:
            self._journal_file, self._journal_read = file, 0  # the old one, of another training, was moved aside
            self.progress, self.has_progress = TrainingProgress(self.name), False
        events, self._journal_read = read_events(self.journal, self._journal_read)
        for event in events:
            self.progress.add(event)
            if event["event"] == "attempt" and event["attempt"] > 1:
                yield f"{self.name}  resumes after step {event['resume_step']}"
            elif event["event"] == "reused":
                yield f"{self.name}  {event.get('message', '')}"
            elif event["event"] == "end" and event["status"] == "FINISHED" and event.get("why"):
                yield f"{self.name}  ended at step {event['step']}: {event['why']}"
            elif event["event"] in ("train", "eval"):
                self.has_progress = self.progress_is_new = True

    def _warnings(self) -> Iterator[str]:
        """New warnings in its log, which every job but a training truncates when it starts."""
        try:
            size = _size(self.log)
            if size < self._log_read:
                self._log_read = 0
            self.has_begun = self.has_begun or self.has_written
            if not self.has_begun or size == self._log_read:
                return
            with open(self.log, "rb") as file:
                file.seek(self._log_read)
                content = file.read()
        except OSError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._log_read += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            if (match := WARNING.match(line)) and match[1] not in self.warned:
                self.warned.add(match[1])
                yield f"{self.title}  {match[1][:LONGEST_WARNING]}"


def shortened(name: str) -> str:
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


def seconds_left(running: Sequence[RunningJob], to_do: Mapping[str, int], taken: Mapping[str, Sequence[float]]) -> float | None:
    """Until a workflow ends that goes on with as many jobs at a time. `to_do`: by stage, with those that run; `taken`: by finished jobs.

    None while nothing is known of a stage of several jobs. A stage of one, such as the comparison, is left out.
    """
    expected = {stage: statistics.mean(seconds) for stage, seconds in taken.items()}
    left = [
        expected.get(job.stage, 0.0) - job.seconds if job.progress.seconds_left is None else job.progress.seconds_left for job in running
    ]
    for job, seconds in zip(running, left, strict=True):
        if job.progress.seconds_left is not None:
            expected.setdefault(job.stage, job.seconds + seconds)
    waiting = Counter(to_do) - Counter(job.stage for job in running)
    if any(stage not in expected and to_do[stage] > 1 for stage in waiting):
        return None
    total = sum(max(0.0, seconds) for seconds in left) + sum(number * expected.get(stage, 0.0) for stage, number in waiting.items())
    return max([*left, total / max(1, sum(job.has_begun for job in running))])


def _size(path: Path) -> int:
    return found.st_size if (found := _stat(path)) else 0


def _inode(path: Path) -> int:
    return found.st_ino if (found := _stat(path)) else 0


def _stat(path: Path) -> os.stat_result | None:
    """None where it is missing: Snakemake removes the log of an earlier start at any moment."""
    try:
        return path.stat()
    except OSError:
        return None
