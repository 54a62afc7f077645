"""Which of the training's processes this one is, which cores it runs on, and how it ends.

The first is known from what the launcher left in the environment. torchrun's names are always read; those of other launchers only if `compute.launcher` is `env`: a job script under SLURM, for
example, sees SLURM's names as well, but is not one of the processes.
"""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from snaketrain.slurm.client import Slurm

# rank, number of processes, rank on this machine, processes on this machine
Names = tuple[str, str, tuple[str, ...], tuple[str, ...]]
TORCHRUN: Names = ("RANK", "WORLD_SIZE", ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",))
# Open MPI; MPICH, Intel MPI and Cray MPICH; PALS (aprun, PBS); SLURM's srun
OTHERS: tuple[Names, ...] = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_LOCAL_SIZE",)),
    ("PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")),
    ("PALS_RANKID", "PALS_SIZE", ("PALS_LOCAL_RANKID",), ("PALS_LOCAL_SIZE",)),
    ("SLURM_PROCID", "SLURM_NTASKS", ("SLURM_LOCALID",), ("SLURM_NTASKS_PER_NODE",)),
)


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    world_size: int = 1
    local: int | None = 0  # some launchers do not set it
    on_this_machine: int = 1

    @classmethod
    def of_environment(cls) -> "Ranks":
        others = OTHERS if os.environ.get("SNAKETRAIN_RANKS") == "environment" else ()
        for names in (TORCHRUN, *others):
            rank, size, *_ = names
            if rank in os.environ and size in os.environ:
                return cls._of((names, *others, TORCHRUN), int(os.environ[rank]), int(os.environ[size]))
        if others:
            known = ", ".join(rank for rank, *_ in others)
            raise SystemExit(
                f"compute.launcher: none of {known} is set. Does `compute.launch_command` start the processes? `torchrun` needs none."
            )
        return cls()

    @classmethod
    def _of(cls, known: tuple[Names, ...], rank: int, world_size: int) -> "Ranks":
        """Combines what several layers of launchers have set, except those that describe another process, such as the job's script."""
        own = [names for names in known if os.environ.get(names[0], str(rank)) == str(rank)]
        local, beside = (
            next((int(os.environ[name]) for names in own for name in names[place] if name in os.environ), None) for place in (2, 3)
        )
        return cls(rank, world_size, 0 if world_size == 1 else local, beside or 0)

    @property
    def gpu(self) -> int:
        """The number of this process's GPU on its machine."""
        if self.local is None:
            known = ", ".join(name for names in OTHERS for name in names[2])
            raise SystemExit(
                f"compute.launcher: process {self.rank} of {self.world_size} does not know which GPU of its machine to use: none of {known} "
                "is set. Let compute.launch_command set LOCAL_RANK in each process."
            )
        return self.local

    def export(self) -> None:
        """Under the names that torch.distributed reads."""
        names = {"RANK": self.rank, "WORLD_SIZE": self.world_size, "LOCAL_RANK": self.local}
        os.environ.update({name: str(value) for name, value in names.items() if value is not None})
        if "MASTER_ADDR" not in os.environ:
            os.environ["MASTER_ADDR"] = self._first_host()
        # a single process takes any free port: a fixed one may be in use by another training or evaluation
        os.environ.setdefault("MASTER_PORT", "0" if self.world_size == 1 else "29500")

    def _first_host(self) -> str:
        """Where rank 0 runs, which all others must reach."""
        if self.on_this_machine == self.world_size:
            return "127.0.0.1"
        if "PBS_NODEFILE" in os.environ:
            return Path(os.environ["PBS_NODEFILE"]).read_text(encoding="utf-8").split()[0]
        if "SLURM_JOB_NODELIST" in os.environ:
            return Slurm().hosts(os.environ["SLURM_JOB_NODELIST"])[0]
        raise SystemExit(
            f"compute.launcher: {self.on_this_machine or 'an unknown number'} of {self.world_size} processes are on this machine, and the host of "
            "rank 0 is unknown. Before the start: export MASTER_ADDR=<its host name>"
        )


# --- One piece of work at a time beside the training. An error in it is raised in the training, at the next call.


class Worker(threading.Thread):
    """Not a daemon: if the training fails, saving still completes."""

    error: BaseException | None = None

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:  # also SystemExit, which a thread would swallow
            self.error = error


class Background:
    def __init__(self) -> None:
        self._worker = Worker()

    def start(self, work: Callable[[], None]) -> None:
        self.finish()
        self._worker = Worker(target=work, name="background")
        self._worker.start()

    def finish(self) -> None:
        """Wait for the work."""
        if self._worker.ident:  # it was started
            self._worker.join()
        self.raise_error()

    def raise_error(self) -> None:
        error, self._worker.error = self._worker.error, None
        if error:
            raise error


# --- The exit codes of a training or an evaluation, which tell its launcher what to do next.

FAILED = 1
STOPPED_EARLY = 75  # EX_TEMPFAIL: stopped by a signal after saving; the same command resumes
SETUP_FAILED = 78  # EX_CONFIG: compute.setup, on a node
WORTH_ANOTHER_START = 76  # the settings are right; another start may succeed


class WorthAnotherStart(SystemExit):
    """Ends this attempt; its message is reported like that of any other failure."""

    exit_code = WORTH_ANOTHER_START


def leave(code: int) -> NoReturn:
    """Exit; one of several ranks without running torch.distributed's destructors.

    The destructor of torch's gloo process group (2.13) sometimes holds the GIL while it waits for a thread that needs the GIL:
    a finished training would hang.
    """
    if Ranks.of_environment().world_size == 1:
        sys.exit(code)
    for thread in threading.enumerate():
        if isinstance(thread, Worker):
            thread.join()  # finish what is being saved; other threads, such as a pool's, may wait for work forever
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# --- Binds each rank to cores near its GPU: `compute.bind`. Threads that the rank starts later inherit them.

BIND = "SNAKETRAIN_BIND"  # set by the launcher


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
    if os.environ.get(BIND) != "numa":
        return
    allowed, topology = os.sched_getaffinity(0), Topology()
    if ranks.local is None or not ranks.on_this_machine:
        outcome = f"warning: compute.bind: rank {ranks.rank} does not know its local rank, so it is not bound"
    elif cores := cores_of(
        ranks.local, ranks.on_this_machine, topology.cores(allowed), topology, [topology.node_of_gpu(bus) for bus in visible_gpus()]
    ):
        os.sched_setaffinity(0, cores)
        outcome = f"rank {ranks.rank} is bound to CPUs {','.join(map(str, sorted(cores)))}"
    else:
        outcome = f"warning: compute.bind: {len(allowed)} CPUs are too few to bind {ranks.on_this_machine} ranks"
    print(outcome, file=sys.stderr, flush=True)


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
