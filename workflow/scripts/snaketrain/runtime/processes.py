"""Whether a process still runs. Process ids are reused, so a process is identified by its id and its start time."""

import ctypes
import os
import signal
import sys
from pathlib import Path

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
