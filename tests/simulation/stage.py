"""Puts the simulated parts in the places of the real ones."""

import contextlib
import logging
import os
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import snakemake_executor_plugin_slurm as plugin
from snakemake.scheduling import job_scheduler
from snakemake_executor_plugin_slurm import accounts, job_cancellation, job_status_query, partitions, utils
from snakemake_interface_executor_plugins.executors import remote

from simulation import standard_library as virtual
from simulation.jobs import Machines, SimulatedStep
from simulation.programs import Programs, without_accounting
from simulation.virtual_time import World, current
from snakemake_executor_plugin_slurm_steady import checks, following, left_over, looks, monitor, names, submitting
from snaketrain.launch import slurm_job
from snaketrain.orchestration import submissions
from snaketrain.runtime import journal, loaded_code, manifests, ownership, run_folder, stages
from snaketrain.slurm import client

logger = logging.getLogger("simulation")  # of all that Snakemake would tell


class NotedHandler(logging.Handler):
    """What Snakemake and the executor log is part of the story."""

    def __init__(self, world: World):
        super().__init__(logging.INFO)
        self.world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() != "None":
            self.world.note(f"snakemake: {record.getMessage().partition('    sbatch call')[0].strip()}")


class OfProcess:
    """In place of the module `os`: each simulated process has its own."""

    devnull = os.devnull
    environ = property(lambda self: current().process.environment)
    getpid = staticmethod(lambda: current().process.pid)
    getppid = staticmethod(lambda: current().process.pid)
    utime, close = os.utime, os.close  # of a lease that an earlier test of this process still holds

    @staticmethod
    def kill(pid: int, number: int) -> None:
        raise AssertionError("under SLURM no training ends another one by a signal")


class SlowFiles:
    """What a node wrote a moment ago is not yet seen on the login node: a shared file system with an attribute cache."""

    def __init__(self, world: World, machines: Machines, lag: float):
        self.world, self.machines, self.lag, self.late = world, machines, lag, 0

    def sees(self, path: Path) -> bool:
        if not os.path.exists(path):
            return False
        seen = self.world.now - self.machines.written.get(str(path), -self.lag) >= self.lag
        self.late += not seen
        return seen


def path_class(files: SlowFiles) -> type[Path]:
    class SeenPath(type(Path())):  # type: ignore[misc]
        def stat(self, **options: Any) -> os.stat_result:
            if not files.sees(Path(self)):
                raise FileNotFoundError(str(self))
            return super().stat(**options)

    return SeenPath


@contextlib.contextmanager
def simulated(world: World, programs: Programs, machines: Machines, files: SlowFiles) -> Iterator[None]:
    def sign(folder: Path) -> None:
        ownership.sign(folder)
        machines.judge.signs(folder, current().process)

    time, asyncio, subprocess = virtual.VirtualTime, virtual.asyncio_with(programs), virtual.subprocess_with(programs)
    changes: list[tuple[object, str, object]] = [
        *((module, "time", time) for module in (client, checks, left_over, looks, monitor, submissions, submitting)),
        *((module, "time", time) for module in (journal, manifests, ownership, run_folder, slurm_job, stages)),
        *((module, "time", time) for module in (plugin, job_status_query, job_scheduler)),
        *((module, "threading", virtual.threading) for module in (client, following, names, submitting, submissions, remote, job_scheduler, journal)),
        (job_status_query, "shlex", SimpleNamespace(split=virtual.split_words, join=shlex.join, quote=shlex.quote)),
        *((module, "subprocess", subprocess) for module in (client, plugin, job_cancellation, job_status_query, partitions, utils)),
        (accounts, "subprocess", virtual.subprocess_with(without_accounting)),
        *((module, "asyncio", asyncio) for module in (remote, looks)),
        (remote, "async_lock", virtual.held), (remote, "Throttler", virtual.Unlimited),
        (remote, "tempfile", SimpleNamespace(mkdtemp=lambda **_: ".snakemake")), (remote, "shutil", SimpleNamespace(rmtree=lambda *_, **__: None)),
        (plugin, "ThreadPoolExecutor", virtual.VirtualPool), (plugin, "atexit", SimpleNamespace(register=lambda _: None)),
        (plugin, "uuid", SimpleNamespace(uuid4=lambda: f"run-id-{current().process.pid}")),
        (job_scheduler, "signal", SimpleNamespace(signal=lambda *_: None, SIGTERM=15)), (job_scheduler, "logger", logger),
        (job_scheduler, "print_exception", lambda error, _: logger.error(str(error))),
        (submissions, "Path", path_class(files)),
        (looks, "WAKING_SECONDS", 5.0),
        (client, "shutil", SimpleNamespace(which=lambda name: f"/usr/bin/{name}")),
        *((module, "os", OfProcess()) for module in (ownership, submissions)),
        *((module, "platform", SimpleNamespace(node=lambda: current().process.host)) for module in (ownership, submissions)),
        *((module, "start_ticks", lambda pid: pid if pid in world.pids else None) for module in (ownership, submissions)),
        (ownership, "_ourselves", ownership._ourselves.__wrapped__),
        (slurm_job, "Step", partial(SimulatedStep, machines)), (client, "ThreadPoolExecutor", virtual.VirtualPool),
        (run_folder, "sign", sign),
        (loaded_code, "_plain_modules", lambda: ()),  # it would look through the thousands of modules of the tests again and again
    ]  # fmt: skip
    handler = NotedHandler(world)
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    with virtual.replaced(changes):
        yield
