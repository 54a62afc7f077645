"""What the executor for SLURM asks of the workflow. Snakemake makes the executor, so the Snakefile can only leave this here for it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snakemake.jobs import Job

    from snaketrain.config.schema import Compute


@dataclass(frozen=True)
class Hooks:
    check: Callable[[list[str]], None]  # before the first job, with what SLURM would refuse: raises that, and what else cannot run
    is_done: Callable[["Job"], bool]  # whether the results of a job are those that it would make
    watched: Callable[[], "tuple[dict[str, Compute], dict[str, Path]]"]  # `ranges` and `folders` of a JobMonitor


_registered: list[Hooks] = []


def register(hooks: Hooks) -> None:
    _registered[:] = [hooks]


def registered() -> Hooks:
    if not _registered:
        raise LookupError("executor: slurm-steady works with snaketrain's Snakefile, which was not read.")
    return _registered[0]
