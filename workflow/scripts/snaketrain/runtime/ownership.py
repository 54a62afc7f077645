"""Ensures one writer per training folder: a process left over from a killed workflow is ended before a new one starts.

If it cannot be ended, for example on a node without network, it notices the new owner before its next write, and exits.
"""

import contextlib
import functools
import json
import logging
import os
import platform
import signal
import time
from collections.abc import Callable
from pathlib import Path

from snaketrain.runtime.manifests import write_json
from snaketrain.runtime.processes import start_ticks
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.slurm.client import Slurm, SlurmError

LAUNCHER = "SNAKETRAIN_LAUNCHER"  # the id of the process that starts torchrun, and starts it again
PATIENCE_SECONDS = 120  # to save and exit; after that it is killed


class TakenOver(Exception):
    """Another process owns the folder now."""


def end_previous_owner(folder: Path) -> None:
    """Make a process that still writes to the folder save and exit."""
    owner, ours = _owner(folder), _ourselves()
    if owner.get("job") and owner["job"] != ours["job"]:
        _end_job(owner["job"], folder)
    elif not owner.get("job") and owner.get("host") == ours["host"] and owner.get("pid") != ours["pid"]:
        _end_process(owner, folder)


def sign(folder: Path) -> None:
    """Record this process as the folder's owner, unless a later start of the same job owns it."""
    owner, ours = _owner(folder), _ourselves()
    if ours["job"] and owner.get("job") == ours["job"] and _start(owner) > _start(ours):
        raise TakenOver(f"{folder}: start {owner['start']} of job {owner['job']} writes here now, so this one, {ours['start']}, ends")
    write_json(folder / "owner.json", _ourselves())


def is_ours(folder: Path) -> bool:
    return _owner(folder) == _ourselves()


def check(folder: Path) -> None:
    """Called before each write: SLURM requeues a job whose node does not respond, although its processes may still be running there."""
    if not is_ours(folder):
        owner = _owner(folder)
        who = f"job {owner['job']}" if owner.get("job") else f"process {owner.get('pid')}"
        raise TakenOver(f"{folder}: {who} on {owner.get('host')} writes here now, so this one ends")


def gone(folder: Path, job_is_over: Callable[[str], bool]) -> str | None:
    """A message if the folder's owner has ended; None if it still runs, or if this machine cannot tell."""
    owner = _owner(folder)
    if owner.get("job"):
        return f"SLURM job {owner['job']} is over" if job_is_over(owner["job"]) else None
    if owner.get("host") != platform.node() or owner.get("started") is None or start_ticks(owner["pid"]) == owner["started"]:
        return None
    return f"process {owner['pid']} on {owner['host']} is gone"


def job_of(folder: Path) -> str | None:
    """The SLURM job that owned the folder last."""
    return _owner(folder).get("job")


def living_process(folder: Path) -> int | None:
    """The process on this machine, in no SLURM job, that writes here now."""
    owner = _owner(folder)
    if owner.get("job") or owner.get("host") != platform.node() or owner.get("started") is None:
        return None
    return int(owner["pid"]) if start_ticks(owner["pid"]) == owner["started"] else None


def _owner(folder: Path) -> JsonObject:
    try:
        owner: JsonObject = json.loads((folder / "owner.json").read_text(encoding="utf-8"))
        return owner
    except (FileNotFoundError, ValueError):
        return {}


@functools.cache  # if torchrun is killed, the parent changes, but the identity must not
def _ourselves() -> JsonObject:
    # the process that ends all ranks: the one that restarts torchrun, or torchrun itself
    pid = int(os.environ.get(LAUNCHER, 0)) or (os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid())
    job, start = os.environ.get("SLURM_JOB_ID"), os.environ.get("SNAKETRAIN_START")
    return {"job": job, "start": start, "host": platform.node(), "pid": pid, "started": start_ticks(pid)}


def _start(owner: JsonObject) -> list[int]:
    """How often SLURM has restarted the job, and how often the job its processes: `2.1`, from launch_slurm.py."""
    return [int(number) for number in (owner.get("start") or "0.0").split(".")]


def _end_job(job: str, folder: Path) -> None:
    slurm = Slurm()

    def may_run() -> bool:
        try:
            return job in slurm.in_queue([job], max_age_seconds=2)
        except SlurmError:
            return True

    if slurm.is_installed() and may_run():
        logging.warning("%s: SLURM job %s, left over from another workflow, still writes here; ending it", folder, job)
        with contextlib.suppress(SlurmError):  # it may have ended meanwhile
            slurm.cancel(job)
        _wait(lambda: not may_run(), f"SLURM job {job}")


def _end_process(owner: JsonObject, folder: Path) -> None:
    pid = owner["pid"]

    def lives() -> bool:
        return owner["started"] is not None and start_ticks(pid) == int(owner["started"])

    if lives():
        logging.warning("%s: process %d still writes here, left over from another workflow; ending it", folder, pid)
        os.kill(pid, signal.SIGTERM)
        if not _wait(lambda: not lives(), f"process {pid}"):
            os.kill(pid, signal.SIGKILL)


def _wait(over: Callable[[], bool], what: str) -> bool:
    end = time.monotonic() + PATIENCE_SECONDS
    while not over():
        if time.monotonic() > end:
            logging.warning("%s did not end within %d seconds", what, PATIENCE_SECONDS)
            return False
        time.sleep(0.5)
    return True
