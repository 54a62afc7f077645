"""Try what a training needs of this machine, and print a line for each: torch, its devices, a collective between processes, MLflow, SLURM."""

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies

from snaketrain.launch.workers import torchrun
from snaketrain.runtime.file_systems import has_locks, kind
from snaketrain.slurm.client import Slurm

SECONDS = 180.0  # for a collective: torch may be read from a slow file system


def check() -> int:
    """How many of them do not work."""
    found: dict[str, Callable[[], str]] = {
        "packages": packages, "devices": devices, "gloo": lambda: collective("gloo", 2), "nccl": nccl, "MLflow": database, "SLURM": slurm
    }  # fmt: skip
    failed = 0
    for name, tried in found.items():
        try:
            print(f"{name:9} {tried()}", flush=True)
        except (Exception, SystemExit) as error:  # whatever a package or a driver raises, the others are tried
            failed += 1
            print(f"{name:9} does not work: {error}", flush=True)
    return failed


def packages() -> str:
    names = ("torch", "transformers", "snakemake", "mlflow")
    return ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in names)])


def devices() -> str:
    import psutil
    import torch

    cores, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory().total / 2**30
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    for number in range(len(gpus)):
        torch.ones(8, device=f"cuda:{number}").sum().item()
    listed = ", ".join(f"{each.name} with {each.total_memory / 2**30:.0f} GiB" for each in gpus)
    return f"{cores} cores, {memory:.0f} GiB of memory, {listed or 'no GPU that torch finds'}"


def nccl() -> str:
    import torch

    return collective("nccl", min(2, torch.cuda.device_count())) if torch.cuda.is_available() else "not tried, without a GPU"


def collective(backend: str, processes: int) -> str:
    """Real processes of torchrun exchange a sum."""
    command = [sys.executable, *torchrun(["--standalone", f"--nproc-per-node={processes}"]), __file__, backend]
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=os.environ | {"OMP_NUM_THREADS": "1"})
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"{processes} processes did not finish within {SECONDS:g} seconds. If several network interfaces are there, name one: "
            f"{backend.upper()}_SOCKET_IFNAME=eth0"
        ) from None
    if done.returncode:
        raise RuntimeError("\n".join(done.stderr.splitlines()[-12:]))
    return f"{processes} processes of torchrun exchanged a sum, {time.monotonic() - began:.1f} seconds with their start"


def exchange(backend: str) -> None:
    """What each of these processes runs."""
    import torch
    from torch import distributed

    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group(backend)
    ranks = torch.tensor([distributed.get_rank() + 1.0], device="cuda" if backend == "nccl" else "cpu")
    distributed.all_reduce(ranks)
    size = distributed.get_world_size()
    assert ranks.item() == size * (size + 1) / 2, f"the sum over the ranks is {ranks.item()}"
    distributed.destroy_process_group()


def database() -> str:
    here = Path.cwd()
    if not has_locks(here):
        return f"{here} ({kind(here)}) has no file locks: the database is written elsewhere and copied. A server is better: tracking.uri"
    from snaketrain.tracking.mlflow_store import Store

    with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=here) as folder:
        Store(f"sqlite:///{folder}/mlflow.db").experiment("tried")
    return f"a database was written in {here} ({kind(here)})"


def slurm() -> str:
    if not Slurm.is_installed():
        return "none: there is no squeue"
    return f"squeue answers; you have {len(Slurm().user_jobs())} jobs in the queue"


if __name__ == "__main__":
    exchange(sys.argv[1])
