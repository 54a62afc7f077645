"""The journal of a training, one JSON object per line: the source for MLflow, TensorBoard and the comparison.

Only rank 0 writes it; what concerns a single rank is in `logs/rank-N.jsonl`. Lines reach the file at once, so a killed process
loses nothing that it has written.
"""

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from snaketrain.runtime import strict_json
from snaketrain.runtime.credentials import hidden_in
from snaketrain.runtime.private_files import private
from snaketrain.runtime.strict_json import Json, JsonObject

Event = JsonObject
ATTEMPT = b'{"event": "attempt"'  # how `Journal.write` begins such a line
CHUNK_BYTES = 1_000_000  # read at a time from a long journal


class Journal:
    def __init__(
        self, path: Path, writes: bool = True, check: Callable[[], None] = lambda: None, about: Mapping[str, Json] = MappingProxyType({})
    ):
        """`check` raises if this process must not write any more; `about` is recorded with the start of this attempt."""
        self.writes, self.attempt, self.check, self.about = writes, 1, check, about
        self.listeners: list[Callable[[Event], None]] = []  # called with each event that was written
        if not writes:
            return
        if path.exists():
            self.attempt = _repair(path) + 1
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
    """Iterates over the rare events of a name, without reading those between them."""
    beginning = f'{{"event": "{name}"'.encode()  # as `Journal.write` begins such a line
    if not path.is_file() or not path.stat().st_size:
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = content.find(beginning)
        while start >= 0:
            yield from read_events(path, start, at_most_bytes=0)[0]
            start = content.find(beginning, start + 1)


def last_attempt(path: Path) -> Event | None:
    """The line with which the last attempt began, of a journal of any length."""
    if not path.is_file() or not path.stat().st_size:
        return None
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = content.rfind(ATTEMPT)
    events = read_events(path, start, at_most_bytes=0)[0] if start >= 0 else []
    return events[0] if events else None


def _repair(path: Path) -> int:
    """Truncate an incomplete last line, left by a crash, and return the number of attempts so far."""
    if not path.stat().st_size:
        return 0
    # not line by line, which for a million steps would take longer than the rest of the start
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        whole, attempts, found = content.rfind(b"\n") + 1, 0, content.find(ATTEMPT)
        while 0 <= found < whole:
            attempts += found == 0 or content[found - 1 : found] == b"\n"
            found = content.find(ATTEMPT, found + 1)
    if whole < path.stat().st_size:
        os.truncate(path, whole)
    return attempts
