"""Processes of this machine: who is alive, what a signal asks for, how many files may be open."""

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

# --- Whether a process still runs. Process ids are reused, so a process is identified by its id and its start time.

PR_SET_PDEATHSIG = 1  # of prctl(2)


class Process:
    """A running process, not confused with a later one of the same id."""

    def __init__(self, pid: int):
        self.pid, self.started = pid, start_ticks(pid)

    def is_alive(self) -> bool:
        if self.started is not None:
            return start_ticks(self.pid) == self.started
        return not Path("/proc/self/stat").exists() and answers(self.pid)


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None once it has ended, and on systems without /proc."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # its name may contain spaces
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])


def process_space() -> str | None:
    """Where a PID names the same process: until the next boot, in one PID namespace, which containers on one host may not share."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def answers(pid: int) -> bool:
    """Whether any process has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def die_with_parent(parent: int) -> None:
    """Have this process killed when the one that started it ends, however that happens; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended meanwhile
            os._exit(1)


# --- The limit on open files, of which every connection is one.

PER_RANK = 4  # connections of each rank to the rendezvous store: one of gloo, others of NCCL; an upper bound
OWN = 256  # what the process has open besides


def needed(world_size: int) -> int:
    """The number of open files of the process that hosts the rendezvous store; all others need a few dozen."""
    return PER_RANK * world_size + OWN


def raise_limit(world_size: int) -> str | None:
    """Raise this process's soft limit to the hard one if the ranks may need it; returns a warning if that is not enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed(world_size) <= soft or soft == resource.RLIM_INFINITY:
        return None
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY or hard >= needed(world_size):
        return None
    return (
        f"{world_size} ranks may need {needed(world_size)} open files in the process that they all connect to, and the limit is {hard}. If the "
        "training cannot start, ask the administrator of this machine for a higher one (`ulimit -Hn`)."
    )


# --- Signals that ask the training to stop only set a flag, which the loop checks between two steps.

# signals that a launcher passes on to its processes instead of dying from them, and how long it waits before it kills the processes
LAUNCHER_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
SECONDS_TO_SAVE = 600


class Stopping:
    def __init__(self) -> None:
        self.signals: list[str] = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: object) -> None:
        name = signal.Signals(number).name
        if name == "SIGINT" and name in self.signals:
            raise KeyboardInterrupt  # a second Ctrl-C ends at once; checkpoints stay intact
        self.signals.append(name)

    def requested(self) -> bool:
        return bool(self.signals)
