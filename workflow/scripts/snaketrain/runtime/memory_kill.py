"""Whether the kernel has killed a process for its memory, by its counters on this node: the process's exit status says only SIGKILL."""

import platform
import re
from dataclasses import dataclass
from pathlib import Path

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
class MemoryKill:
    host: str
    processes: int
    of_machine: bool  # it may have been another job's process
    limit_mb: int | None = None
    peak_mb: int | None = None

    def __str__(self) -> str:
        whose = "of the machine, perhaps of another job," if self.of_machine else "of this job"
        known = {"limit": self.limit_mb, "peak": self.peak_mb}
        amounts = ", ".join(f"{name} {amount} MB" for name, amount in known.items() if amount is not None)
        killed = "1 process" if self.processes == 1 else f"{self.processes} processes"
        return f"the kernel killed {killed} {whose} on {self.host} for memory" + (f" ({amounts})" if amounts else "")


def memory_use() -> MemoryUse:
    groups = own_cgroups()
    kills = next((count for group in groups if (count := kills_in(group)) is not None), None)
    limits = [(limit, group) for group in groups if (limit := megabytes(group, "memory.max", "memory.limit_in_bytes")) is not None]
    if kills is None or not limits:
        return MemoryUse(kills_on_machine(), of_machine=True, limit_mb=memory_of_machine())
    limit, group = min(limits, key=lambda found: found[0])
    return MemoryUse(kills, False, limit, megabytes(group, "memory.peak", "memory.max_usage_in_bytes"))


def kill_since(before: MemoryUse) -> MemoryKill | None:
    now = memory_use()
    if now.kills <= before.kills or now.of_machine != before.of_machine:
        return None
    return MemoryKill(platform.node(), now.kills - before.kills, now.of_machine, now.limit_mb, now.peak_mb)


def own_cgroups() -> list[Path]:
    """The memory cgroup of this process, of version 1 or 2, and those above it."""
    found = []
    for line in lines_of(Path("/proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        for root in [CGROUPS / "memory"] if "memory" in controllers.split(",") else [] if controllers else [CGROUPS]:
            group = root / path.lstrip("/")
            found += [each for each in (group, *group.parents) if each.is_relative_to(root) and each.is_dir()]
    return found


def kills_in(group: Path) -> int | None:
    for name in ("memory.events", "memory.oom_control"):
        for line in lines_of(group / name):
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def megabytes(group: Path, *names: str) -> int | None:
    """The first of these files that holds a number."""
    for name in names:
        text = "".join(lines_of(group / name)[:1])
        if text.isdecimal() and int(text) < UNLIMITED_BYTES:
            return int(text) // 2**20
    return None


def kills_on_machine() -> int:
    return next((int(line.split()[1]) for line in lines_of(Path("/proc/vmstat")) if line.startswith("oom_kill ")), 0)


def memory_of_machine() -> int | None:
    found = [re.match(r"MemTotal:\s+(\d+) kB", line) for line in lines_of(Path("/proc/meminfo"))]
    return next((int(match[1]) // 1024 for match in found if match), None)


def lines_of(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
