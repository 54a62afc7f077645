"""Binds each rank to cores near its GPU: `compute.bind`. Threads that the rank starts later inherit them."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from snaketrain.runtime.ranks import Ranks

VARIABLE = "SNAKETRAIN_BIND"  # set by the launcher


class Topology:
    """Which cores and GPUs are near each other, as Linux reports it."""

    def __init__(self, sys_folder: Path = Path("/sys")):
        self.devices, self.pci = sys_folder / "devices/system", sys_folder / "bus/pci/devices"
        self.node_of_cpu = {
            cpu: int(folder.name.removeprefix("node"))
            for folder in sorted(self.devices.glob("node/node[0-9]*"))
            for cpu in cpus_of((folder / "cpulist").read_text())
        }

    def node(self, core: list[int]) -> int:
        return self.node_of_cpu.get(core[0], 0)

    def cores(self, allowed: Iterable[int]) -> list[list[int]]:
        """The allowed CPUs, those of one core together, in the order of NUMA nodes."""
        cores: dict[tuple[int, int], list[int]] = {}
        for cpu in sorted(allowed):
            siblings = self.devices / f"cpu/cpu{cpu}/topology/thread_siblings_list"
            first = min(cpus_of(siblings.read_text())) if siblings.is_file() else cpu
            cores.setdefault((self.node_of_cpu.get(cpu, 0), first), []).append(cpu)
        return [cores[place] for place in sorted(cores)]

    def node_of_gpu(self, bus: str) -> int | None:
        """`bus` as nvidia-smi writes it: 00000000:3B:00.0."""
        domain, _, rest = bus.lower().partition(":")
        try:
            node = int((self.pci / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None  # -1: not known


def bind(ranks: Ranks) -> None:
    """Bind this rank; called before torch is imported, since threads that already run would keep their cores."""
    if os.environ.get(VARIABLE) != "numa":
        return
    allowed, topology = os.sched_getaffinity(0), Topology()
    if ranks.local is None or not ranks.on_this_machine:
        return print(
            f"warning: compute.bind: rank {ranks.rank} does not know its local rank, so it is not bound", file=sys.stderr, flush=True
        )
    gpus = [topology.node_of_gpu(bus) for bus in visible_gpus()]
    cores = cores_of(ranks.local, ranks.on_this_machine, topology.cores(allowed), topology, gpus)
    if not cores:
        return print(
            f"warning: compute.bind: {len(allowed)} CPUs are too few to bind {ranks.on_this_machine} ranks", file=sys.stderr, flush=True
        )
    os.sched_setaffinity(0, cores)
    print(f"rank {ranks.rank} is bound to CPUs {','.join(map(str, sorted(cores)))}", file=sys.stderr, flush=True)


def cores_of(rank: int, ranks: int, cores: list[list[int]], topology: Topology, gpus: list[int | None]) -> list[int]:
    """A rank's share of the cores of its GPU's NUMA node, which it shares with the other ranks there; of all cores, if the node is unknown."""
    if len(gpus) >= ranks and all(any(topology.node(core) == node for core in cores) for node in gpus[:ranks]):
        beside = [other for other in range(ranks) if gpus[other] == gpus[rank]]
        cores = [core for core in cores if topology.node(core) == gpus[rank]]
        rank, ranks = beside.index(rank), len(beside)
    share = cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks]
    return [cpu for core in share for cpu in core]


def visible_gpus() -> list[str]:
    """The PCI addresses of this process's GPUs, in its order."""
    try:
        query = ["nvidia-smi", "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"]
        listed = subprocess.run(query, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [[word.strip() for word in line.split(",")] for line in listed.splitlines() if line.count(",") == 2]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [bus for _, _, bus in rows]
    return [bus for each in chosen.split(",") for index, uuid, bus in rows if each and (each == index or uuid.startswith(each))]


def cpus_of(text: str) -> list[int]:
    """`0-3,8` as 0, 1, 2, 3, 8."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return [cpu for each in ranges for cpu in range(int(each[0]), int(each[-1]) + 1)]
