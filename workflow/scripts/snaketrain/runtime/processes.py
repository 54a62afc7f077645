"""Processes of this machine: who is alive, how this one ends, what a signal asks for, how many files may be open, whom the kernel killed for memory."""

import atexit
import ctypes
import gc
import io
import os
import platform
import resource
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

# --- Process ids are reused, so a process is identified by its id and its start time.

PR_SET_PDEATHSIG = 1  # of prctl(2)


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


def die_with_parent(parent: int) -> None:
    """Have this process killed when the one that started it ends, however that happens; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended meanwhile
            os._exit(1)


def end_quickly(code: int = 0) -> NoReturn:
    """As Python ends, but without taking all modules apart, which takes up to a second. What CPython does first has no documented name."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in gc.get_objects():
        if issubclass(type(file), io.IOBase):
            with suppress(Exception):  # it may be closed or detached, or somebody's own class
                file.flush()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    os._exit(code)


# --- The limit on open files, of which every connection is one.

PER_RANK = 4  # connections of each rank to the rendezvous store: one of gloo, others of NCCL; an upper bound
OWN = 256  # what the process has open besides


def raise_limit(world_size: int) -> str | None:
    """Raise this process's soft limit to the hard one if the ranks may need it; returns a warning if that is not enough.

    Only the process that hosts the rendezvous store needs so many open files; all others need a few dozen.
    """
    needed, (soft, hard) = PER_RANK * world_size + OWN, resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed <= soft or soft == resource.RLIM_INFINITY:
        return None
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return None
    return (
        f"{world_size} ranks may need {needed} open files in the process that they all connect to, and the limit is {hard}. If the "
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


# --- Whether the kernel has killed a process for its memory, by its counters on this node: the process's exit status says only SIGKILL.

OUT_OF_MEMORY = "out of memory: "  # stands before a kill in a job's log, where slurm/failures.py finds it
CGROUPS = Path("/sys/fs/cgroup")
UNLIMITED_BYTES = 2**60  # cgroup v1 writes a number near 2**63 for no limit


@dataclass(frozen=True)
class MemoryUse:
    """What is known of the memory of this process's cgroup, or of the machine where there is none with a limit."""

    kills: int
    of_machine: bool
    limit_mb: int | None = None
    peak_mb: int | None = None


@dataclass(frozen=True)
class MemoryKill(MemoryUse):
    """Of as many processes as `kills`; where it is of the machine, they may have been another job's."""

    host: str = ""

    def __str__(self) -> str:
        whose = "of the machine, perhaps of another job," if self.of_machine else "of this job"
        known = {"limit": self.limit_mb, "peak": self.peak_mb}
        amounts = ", ".join(f"{name} {amount} MB" for name, amount in known.items() if amount is not None)
        killed = "1 process" if self.kills == 1 else f"{self.kills} processes"
        return f"the kernel killed {killed} {whose} on {self.host} for memory" + (f" ({amounts})" if amounts else "")


def memory_use() -> MemoryUse:
    groups = own_cgroups()
    counts = (number_in(group / name, "oom_kill") for group in groups for name in ("memory.events", "memory.oom_control"))
    kills = next((count for count in counts if count is not None), None)
    limits = [(limit, group) for group in groups if (limit := megabytes(group, "memory.max", "memory.limit_in_bytes")) is not None]
    if kills is None or not limits:
        machine_kb = number_in(Path("/proc/meminfo"), "MemTotal:")
        return MemoryUse(number_in(Path("/proc/vmstat"), "oom_kill") or 0, of_machine=True, limit_mb=machine_kb and machine_kb // 1024)
    limit, group = min(limits, key=lambda found: found[0])
    return MemoryUse(kills, False, limit, megabytes(group, "memory.peak", "memory.max_usage_in_bytes"))


def kill_since(before: MemoryUse) -> MemoryKill | None:
    now = memory_use()
    if now.kills <= before.kills or now.of_machine != before.of_machine:
        return None
    return MemoryKill(now.kills - before.kills, now.of_machine, now.limit_mb, now.peak_mb, platform.node())


def own_cgroups() -> list[Path]:
    """The memory cgroup of this process, of version 1 or 2, and those above it."""
    found = []
    for line in lines_of(Path("/proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            root = CGROUPS / "memory" if controllers else CGROUPS
            group = root / path.lstrip("/")
            found += [each for each in (group, *group.parents) if each.is_relative_to(root) and each.is_dir()]
    return found


def number_in(path: Path, name: str) -> int | None:
    """Of the line of this name."""
    return next((int(line.split()[1]) for line in lines_of(path) if line.startswith(f"{name} ")), None)


def megabytes(group: Path, *names: str) -> int | None:
    """The first of these files that holds a number."""
    for name in names:
        text = "".join(lines_of(group / name)[:1])
        if text.isdecimal() and int(text) < UNLIMITED_BYTES:
            return int(text) // 2**20
    return None


def lines_of(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
