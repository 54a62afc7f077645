"""What happened in a training, a JSON object a line: the truth that MLflow, TensorBoard and the comparison follow.

Only the first process writes it; what each had to do alone is in `logs/rank-N.jsonl`. Lines reach the file at once, so a
killed process loses nothing it has written down.
"""

import json
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from snaketrain.runtime.credentials import hidden_in
from snaketrain.runtime.json_types import Json, JsonObject

Event = JsonObject
ATTEMPT = b'{"event": "attempt"'  # the beginning of such a line, as `write` writes it
CHUNK_BYTES = 1_000_000  # of a long journal at once


class Journal:
    def __init__(
        self, path: Path, writes: bool = True, check: Callable[[], None] = lambda: None, about: Mapping[str, Json] = MappingProxyType({})
    ):
        """`check` raises where nothing may be written any more; `about` is what the first line says of this attempt."""
        self.writes, self.attempt, self.check, self.about = writes, 1, check, about
        if not writes:
            return
        if path.exists():
            self.attempt = _repair(path) + 1
        self.one_at_a_time = threading.Lock()  # another thread tells of the machine
        self.file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - open as long as the training

    def begin(self, resume_step: int, **about: Json) -> None:
        """The line with which an attempt to train begins."""
        self.write("attempt", resume_step=resume_step, **about, **self.about)

    def write(self, event: str, **content: Json) -> None:
        if self.writes:
            self.check()
            with self.one_at_a_time:
                line = {"event": event, **hidden_in(content), "time": round(time.time(), 3), "attempt": self.attempt}
                self.file.write(json.dumps(line) + "\n")

    def sync(self) -> None:
        """To the disk itself, which a crash of the machine spares."""
        if self.writes:
            self.check()
            os.fsync(self.file.fileno())


def read_events(path: str | Path, offset: int = 0, at_most_bytes: int = -1) -> tuple[list[Event], int]:
    """The events after an offset, and the offset of what is not yet read; a torn last line is left for later."""
    if not Path(path).is_file():
        return [], offset
    with open(path, "rb") as file:
        file.seek(offset)
        content = file.read(at_most_bytes) + file.readline()
    complete = content.rfind(b"\n") + 1
    events = []
    for line in content[:complete].splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # torn by a crash, and not repaired yet
        if isinstance(event, dict):
            events.append(event)
    return events, offset + complete


def all_events(path: str | Path) -> Iterator[Event]:
    """One after the other, of a journal of any length."""
    offset, further = -1, 0
    while further != offset:
        offset = further
        events, further = read_events(path, offset, CHUNK_BYTES)
        yield from events


def last_attempt(path: Path) -> Event | None:
    """The line with which the last attempt began, of a journal of any length."""
    if not path.is_file() or not path.stat().st_size:
        return None
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = content.rfind(ATTEMPT)
    events = read_events(path, start, at_most_bytes=0)[0] if start >= 0 else []
    return events[0] if events else None


def _repair(path: Path) -> int:
    """Cut off a line torn by a crash; the number of attempts so far."""
    if not path.stat().st_size:
        return 0
    # not read line by line, which for a million steps takes longer than all else before the first step
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        whole, attempts, found = content.rfind(b"\n") + 1, 0, content.find(ATTEMPT)
        while 0 <= found < whole:
            attempts += found == 0 or content[found - 1 : found] == b"\n"
            found = content.find(ATTEMPT, found + 1)
    if whole < path.stat().st_size:
        os.truncate(path, whole)
    return attempts
