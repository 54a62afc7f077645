"""One writer at a time, without file locks, which some mounts of Lustre and NFS lack: each writer checks before it writes.

The folder of a training goes to the newest workflow: its `owner.json` names the owner, and a process left over from a killed workflow is
ended. If it cannot be, for example on a node without network, it notices the new owner before its next write, and exits.

A follower and its database go to whoever waits for a `Lease` until the owner is silent.
"""

import contextlib
import functools
import json
import logging
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from snaketrain.runtime.manifests import write_json
from snaketrain.runtime.processes import process_space, start_ticks
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.slurm.client import Slurm, SlurmError

LAUNCHER = "SNAKETRAIN_LAUNCHER"  # the id of the process that starts torchrun, and starts it again
PATIENCE_SECONDS = 120  # to save and exit; after that it is killed


class TakenOver(Exception):
    """Another process owns the folder now."""


def end_previous_owner(folder: Path) -> None:
    """Make a process that still writes to the folder save and exit."""
    owner, ours = _owner(folder), _ourselves()
    if owner.get("job") and owner["job"] != ours["job"]:
        _end_job(owner["job"], folder)
    elif _lives(owner) and owner["pid"] != ours["pid"]:
        _end_process(owner, folder)


def sign(folder: Path) -> None:
    """Record this process as the folder's owner, unless a later start of the same job owns it."""
    owner, ours = _owner(folder), _ourselves()
    if ours["job"] and owner.get("job") == ours["job"] and _start(owner) > _start(ours):
        raise TakenOver(f"{folder}: start {owner['start']} of job {owner['job']} writes here now, so this one, {ours['start']}, ends")
    write_json(folder / "owner.json", ours)


def is_ours(folder: Path) -> bool:
    return _owner(folder) == _ourselves()


def check(folder: Path) -> None:
    """Called before each write: SLURM requeues a job whose node does not respond, although its processes may still be running there."""
    if not is_ours(folder):
        owner = _owner(folder)
        who = f"job {owner['job']}" if owner.get("job") else f"process {owner.get('pid')}"
        raise TakenOver(f"{folder}: {who} on {owner.get('host')} writes here now, so this one ends")


def gone(folder: Path, job_is_over: Callable[[str], bool]) -> str | None:
    """A message if the folder's owner has ended; None if it still runs, or if this machine cannot tell."""
    owner = _owner(folder)
    if owner.get("job"):
        return f"SLURM job {owner['job']} is over" if job_is_over(owner["job"]) else None
    return f"process {owner['pid']} on {owner['host']} is gone" if _lives(owner) is False else None


def job_of(folder: Path) -> str | None:
    """The SLURM job that owned the folder last."""
    return _owner(folder).get("job")


def living_process(folder: Path) -> int | None:
    """The process on this machine, in no SLURM job, that writes here now."""
    owner = _owner(folder)
    return int(owner["pid"]) if _lives(owner) else None


def _owner(folder: Path) -> JsonObject:
    try:
        return json.loads((folder / "owner.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}


def _lives(owner: JsonObject) -> bool | None:
    """None for a SLURM job, and where this machine cannot tell."""
    if owner.get("job") or owner.get("host") != platform.node() or owner.get("started") is None:
        return None
    return bool(start_ticks(owner["pid"]) == owner["started"])


@functools.cache  # if torchrun is killed, the parent changes, but the identity must not
def _ourselves() -> JsonObject:
    # the process that ends all ranks: the one that restarts torchrun, or torchrun itself
    pid = int(os.environ.get(LAUNCHER, 0)) or (os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid())
    job, start = os.environ.get("SLURM_JOB_ID"), os.environ.get("SNAKETRAIN_START")
    return {"job": job, "start": start, "host": platform.node(), "pid": pid, "started": start_ticks(pid)}


def _start(owner: JsonObject) -> list[int]:
    """How often SLURM has restarted the job, and how often the job its processes: `2.1`, from launch_slurm.py."""
    return [int(number) for number in (owner.get("start") or "0.0").split(".")]


def _end_job(job: str, folder: Path) -> None:
    slurm = Slurm()

    def may_run() -> bool:
        try:
            return job in slurm.in_queue([job], max_age_seconds=2)
        except SlurmError:
            return True

    if slurm.is_installed() and may_run():
        logging.warning("%s: SLURM job %s, left over from another workflow, still writes here; ending it", folder, job)
        with contextlib.suppress(SlurmError):  # it may have ended meanwhile
            slurm.cancel(job)
        _wait(lambda: not may_run(), f"SLURM job {job}")


def _end_process(owner: JsonObject, folder: Path) -> None:
    pid = owner["pid"]
    logging.warning("%s: process %d still writes here, left over from another workflow; ending it", folder, pid)
    with contextlib.suppress(ProcessLookupError):  # it may end by itself at any time
        os.kill(pid, signal.SIGTERM)
        if not _wait(lambda: not _lives(owner), f"process {pid}"):
            os.kill(pid, signal.SIGKILL)


def _wait(over: Callable[[], bool], what: str) -> bool:
    end = time.monotonic() + PATIENCE_SECONDS
    while not over():
        if time.monotonic() > end:
            logging.warning("%s did not end within %d seconds", what, PATIENCE_SECONDS)
            return False
        time.sleep(0.5)
    return True


# --- A lease. Each owner creates a file with a number one above that of the owner before, and the highest number is valid. `O_EXCL` lets
# one of several processes succeed, and nobody ever replaces the file of a later owner. The owner touches its file again and again. Clocks
# of machines differ, so a waiting process never reads these times; it only watches whether they change.

BEAT_SECONDS = 10.0
STILL_SECONDS = 90.0  # without a beat: NFS may show an old time for a minute (acregmax)
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 2.0  # between two looks at the owner
RELEASED = "released\n"


class LeaseLost(Exception):
    """Another process has taken over, since this one was suspended or cut off from the file system."""


@dataclass(frozen=True)
class Owner:
    host: str
    pid: int
    started: int | None
    space: str | None  # where its PID is valid

    @classmethod
    def current(cls) -> "Owner":
        return cls(platform.node(), os.getpid(), start_ticks(os.getpid()), process_space())

    @classmethod
    def of(cls, line: str) -> "Owner | None":
        try:
            return cls(**json.loads(line))
        except (ValueError, TypeError):
            return None

    def runs(self) -> bool | None:
        """None if this process cannot tell."""
        if None in (self.started, self.space) or self.space != process_space():
            return None
        return start_ticks(self.pid) == self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True)
class Entry:
    """The file of the latest owner."""

    number: int
    beat: int  # the file's time of change
    owner: Owner | None  # None for a moment, until a new owner has written its name
    released: bool

    @property
    def is_over(self) -> bool:
        return self.released or (self.owner is not None and self.owner.runs() is False)


class Watch:
    """Whether the owner's file still changes, as seen from here."""

    def __init__(self) -> None:
        self._seen, self._changes, self._silent_seconds, self._looked = (0, 0), 0, 0.0, time.monotonic()

    def is_silent(self, latest: Entry) -> bool:
        now = time.monotonic()
        if self._seen != (latest.number, latest.beat):
            self._seen, self._silent_seconds, self._changes = (latest.number, latest.beat), 0.0, self._changes + 1
        else:  # a longer pause means that this process was suspended, and the owner perhaps as well
            self._silent_seconds += min(now - self._looked, 2 * LONGEST_PAUSE_SECONDS)
        self._looked = now
        return self._silent_seconds >= STILL_SECONDS

    def knows_it_lives(self, latest: Entry) -> bool:
        return self._changes > 1 or bool(latest.owner and latest.owner.runs())


class Lease:
    def __init__(self, path: Path):
        """`path`: of the owners' files, without the number."""
        self.path = path
        self._number, self._file, self._content = 0, -1, ""
        self._ended = threading.Event()
        self._ended.set()  # nothing to release

    def acquire(
        self, wait_seconds: float, stop: Callable[[], bool] = lambda: False, waiting: Callable[[str], None] = lambda owner: None
    ) -> str | None:
        """None if this process owns it now, otherwise the name of the living owner.

        Beyond `wait_seconds` it still waits until the owner is known to live, or is silent for too long. `waiting` is called once.
        """
        began, watch, pause = time.monotonic(), Watch(), SHORTEST_PAUSE_SECONDS
        while True:
            waited, latest = time.monotonic() - began, self._latest()
            if latest is None or latest.is_over or watch.is_silent(latest):
                if self._create(latest.number + 1 if latest else 1):
                    return None
                continue  # somebody else was faster
            owner = str(latest.owner or "a process that has not written its name yet")
            if stop() or (waited >= wait_seconds and watch.knows_it_lives(latest)):
                return owner
            if pause == SHORTEST_PAUSE_SECONDS:
                waiting(owner)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def is_ours(self) -> bool:
        try:
            return self._name(self._number).read_text(encoding="utf-8") == self._content and not self._name(self._number + 1).exists()
        except FileNotFoundError:
            return False

    def check(self) -> None:
        """Before each write."""
        if not self.is_ours():
            latest = self._latest()
            who = latest.owner if latest else "its file is gone, so any process"
            raise LeaseLost(f"{self.path}: {who} may write now, and this one ends")

    def release(self) -> None:
        if not self._ended.is_set():
            with contextlib.suppress(OSError):
                os.write(self._file, RELEASED.encode())  # to our own file, even if there is a later one
                os.fsync(self._file)
            self._ended.set()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Wait for it as long as it takes."""
        self.acquire(float("inf"))
        try:
            yield
        finally:
            self.release()

    def _name(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _numbers(self) -> list[int]:
        names = (name.rpartition(".") for name in os.listdir(self.path.parent))
        return sorted(int(ending) for name, _, ending in names if name == self.path.name and ending.isdecimal())

    def _latest(self) -> Entry | None:
        while numbers := self._numbers():
            with contextlib.suppress(FileNotFoundError), open(self._name(numbers[-1]), encoding="utf-8") as file:
                # opening it makes NFS ask the server; a plain stat may be answered from memory
                first, _, rest = file.read().partition("\n")
                return Entry(numbers[-1], os.fstat(file.fileno()).st_mtime_ns, Owner.of(first), rest == RELEASED)
        return None

    def _create(self, number: int) -> bool:
        content = json.dumps(asdict(Owner.current())) + "\n"
        try:
            file = os.open(self._name(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        try:
            os.write(file, content.encode())
            os.fsync(file)
            numbers = self._numbers()
        except OSError:  # such as a full disk
            os.close(file)
            self._name(number).unlink(missing_ok=True)
            raise
        self._number, self._file, self._content, self._ended = number, file, content, threading.Event()
        threading.Thread(target=self._beat, args=(file, self._ended), name="lease", daemon=True).start()
        if numbers[-1:] != [number]:  # this process was suspended after it had looked, and there is a later owner
            self.release()
            return False
        for older in numbers[:-1]:
            self._name(older).unlink(missing_ok=True)
        return True

    @staticmethod
    def _beat(file: int, ended: threading.Event) -> None:
        while not ended.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(file)  # the open file, never that of a later owner; the time is the file server's
        os.close(file)
