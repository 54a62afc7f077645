"""Which of the training's processes this one is, and how it ends.

The first is known from what the launcher left in the environment. torchrun's names are always read; those of other launchers only if `compute.launcher` is `env`: a job script under SLURM, for
example, sees SLURM's names as well, but is not one of the processes.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable
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
