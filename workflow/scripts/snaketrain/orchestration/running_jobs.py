"""What jobs write: how far a training is, from its journal; warnings, and the error that a job ended with, from its log."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from snaketrain.orchestration.known_stages import trains
from snaketrain.runtime.journal import PROGRESS, TrainingProgress, duration, last_attempt, read_events

WARNING = re.compile(r"^(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} )?(warning: .*)")
LINE_SECONDS = 10.0  # between two lines of a run, where they are not live
CLOCKS_DIFFER_SECONDS = 5.0  # of a file server, or a node of a cluster
LONGEST_WARNING = 300  # characters


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
        self.shown_at = time.monotonic()
        self.progress = TrainingProgress(self.name)
        self.has_progress = self.progress_is_new = False
        self.warned: set[str] = set()
        self.journal = self.folder / "journal.jsonl"
        self._journal_read, self._log_read = _size(self.journal), _size(self.log)
        self._journal_file = _inode(self.journal)
        if trains(self.stage) and (attempt := last_attempt(self.journal)):
            self.progress.add(attempt)  # of a job that an earlier workflow has submitted

    @property
    def title(self) -> str:
        return f"{self.stage:17}  {self.name}".rstrip()

    @property
    def seconds(self) -> float:
        return time.time() - self.started

    @property
    def live_line(self) -> str:
        return self.progress.line if self.has_progress else f"{self.title}  {duration(self.seconds)}"

    @property
    def last_written(self) -> float:
        return self.log.stat().st_mtime if self.log.is_file() else 0.0

    @property
    def has_written(self) -> bool:
        """Whether its log is its own, and not of an earlier start."""
        return self.last_written >= self.started - CLOCKS_DIFFER_SECONDS

    def look(self) -> list[str]:
        """What is worth a line of its own: warnings, and that a training resumes."""
        return [*self._warnings(), *(self._events() if trains(self.stage) else ())]

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
            elif event["event"] in ("train", "eval"):
                self.has_progress = self.progress_is_new = True

    def _warnings(self) -> Iterator[str]:
        """New warnings in its log, which every job but a training truncates when it starts."""
        try:
            size = _size(self.log)
            if size < self._log_read:
                self._log_read = 0
            if not self.has_written or size == self._log_read:
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


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _inode(path: Path) -> int:
    return path.stat().st_ino if path.is_file() else 0


# --- Why a job failed.

FROM_LAUNCHERS = re.compile(r"\[?[EWI]\d{4}[ :]|srun: error: |[=-]+$")  # messages of launchers that end the other processes after an error
EXCEPTION = re.compile(r"(?!torch\.distributed\.elastic)[\w.]*(Error|Exception|Interrupt|NotFound)\b")
KILLED = re.compile(r"killed by SIG\w+$")  # as keep_log.py ends a log
KILLER = re.compile(r"the kernel killed .*|rank \d+ was killed by .*")  # who knows more of it
TRACEBACK = "Traceback (most recent call last):"
LAST_BYTES = 65_536  # read from the end of a journal, which may be long
LONGEST_TRACEBACK = 40  # lines; the log has all of it
TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")


def last_error(log: Path, folder: Path) -> str:
    """The error that a job ended with, from its log, or from the journal of a training."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"it left no {log}; Snakemake's own messages say why"
    messages = [line for line in _lines(text) if line.strip() and not FROM_LAUNCHERS.match(line) and not PROGRESS.match(line)]
    if messages and KILLED.match(messages[-1]):
        return one_line(_killed(messages))
    journal = folder / "journal.jsonl"
    events = read_events(journal, max(0, journal.stat().st_size - LAST_BYTES))[0] if journal.is_file() else []
    if events and events[-1]["event"] == "end":
        end = events[-1]
        reason = one_line(end.get("error") or f"stopped by {', '.join(end.get('signals', []))} at step {end['step']}")
        if reason.removesuffix("...") in text:  # otherwise it is from an earlier attempt
            return reason
    return one_line(next((line for line in reversed(messages) if EXCEPTION.match(line)), messages[-1] if messages else f"{log} is empty"))


def _killed(messages: list[str]) -> str:
    *before, killed = messages
    killer = next((match[0] for line in reversed(before[-3:]) if (match := KILLER.search(line))), None)
    return killed if killer is None else killer if killed in killer else f"{killed}: {killer}"


def last_traceback(log: Path, error: str) -> list[str]:
    """The lines of the last traceback in a log that ends with this error, if there is one."""
    try:
        lines = _lines(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return []
    message = error.removesuffix("...")
    for end in range(len(lines) - 1, 0, -1):
        if EXCEPTION.match(lines[end]) and (lines[end].strip() in message or message in lines[end]):
            start = next((number for number in range(end, -1, -1) if lines[number].startswith(TRACEBACK)), end)
            return lines[max(start, end - LONGEST_TRACEBACK) : end + 1] if start < end else []
    return []


def _lines(text: str) -> list[str]:
    return [TIME.sub("", line) for line in text.splitlines()[1:]]  # the first line is the command


def one_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return line if len(line) <= 500 else line[:497] + "..."
