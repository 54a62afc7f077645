"""Why a SLURM job failed, where its state and its log give it away, and what to do. What would fail again is not retried."""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from snaketrain.runtime.processes import OUT_OF_MEMORY
from snaketrain.slurm.client import Slurm, SlurmError

LOG_BYTES = 200_000  # the end of a log, which holds all starts of a job
NEW_START = re.compile(r"^job \d+: \d+ processes on each of .*$", re.M)  # launch_slurm.py again, after a requeue
MEMORY = re.compile(
    rf"^.*(?:{OUT_OF_MEMORY}(?P<ours>.*)|exceeded memory limit \((?P<used>\d+) > (?P<limit>\d+)\).*|oom[-_]kill event.*)$", re.M
)
NO_FOLDER = re.compile(r"couldn't chdir to `")
NO_CONFIGURATION = re.compile(
    "Could not establish a configuration source|Unable to process configuration file|fetch_config: DNS SRV lookup failed"
)


@dataclass(frozen=True)
class Failure:
    """What follows `SLURM job 41 (train_model wide) ...`, and whether another try may end otherwise."""

    what: str
    worth_retrying: bool


def failure(slurm: Slurm, number: str, state: str, log: Path, asked_mb: int | None = None) -> Failure | None:
    """None if neither state nor log give a reason away."""
    text = end_of(log)
    sign = last_memory_line(text or "")
    if state == "OUT_OF_MEMORY" or sign:
        return of_memory(slurm, number, sign, asked_mb)
    if state == "CANCELLED":
        return Failure("was cancelled and is not retried: start snakemake again to resume it", worth_retrying=False)
    if state == "FAILED" and (text is None or NO_FOLDER.search(text)):
        how = "was started in another folder" if text else f"left no log at {log}"
        return Failure(
            f"{how}: its node probably does not see the working directory {os.getcwd()}. Check with `srun ls -d {os.getcwd()}`, and work in a folder "
            "that all nodes share",
            worth_retrying=True,  # on another node, perhaps
        )
    if text and NO_CONFIGURATION.search(text):
        return Failure(
            "found no configuration of SLURM on its node: export SLURM_CONF before snakemake is started, with a path that the nodes share, or ask "
            "for a link /etc/slurm/slurm.conf there",
            worth_retrying=False,
        )
    return None


def end_of(log: Path) -> str | None:
    """The end of a log, from the job's last start on; None if there is no log."""
    try:
        os.listdir(log.parent)  # NFS may know an older state of the folder, until it is read
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    starts = list(NEW_START.finditer(text))
    return text[starts[-1].start() :] if starts else text


def last_memory_line(text: str) -> re.Match[str] | None:
    found = list(MEMORY.finditer(text))
    return next((match for match in reversed(found) if match["ours"] or match["used"]), found[-1] if found else None)


def of_memory(slurm: Slurm, number: str, sign: re.Match[str] | None, asked_mb: int | None) -> Failure:
    details = [f"{asked_mb} MB were asked for on each node"] if asked_mb else []
    if sign and sign["ours"]:
        details.append(sign["ours"])
    elif sign and sign["used"]:
        details.append(f"{int(sign['used']) // 2**20} MB were in use, over a limit of {int(sign['limit']) // 2**20} MB")
    elif (used_mb := most_memory_mb(slurm, number)) is not None:
        details.append(f"{used_mb} MB were in use by a process")
    known = f" ({'; '.join(details)})" if details else ""
    if sign and "of the machine" in (sign["ours"] or ""):
        return Failure(f"may have been killed for its memory{known}: it is retried; if that happens again, raise compute.memory_mb", True)
    return Failure(
        f"was killed for its memory{known}. It would need as much again, so it is not retried: raise compute.memory_mb, or mem_mb in the profile "
        "for the other stages",
        worth_retrying=False,
    )


def most_memory_mb(slurm: Slurm, number: str) -> int | None:
    with contextlib.suppress(SlurmError, ValueError):  # most often there is no accounting
        return slurm.most_memory_mb(number)
    return None
