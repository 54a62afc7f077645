"""One writer for each training folder: a process left over from a killed workflow is ended before a new one starts."""

import json
import logging
import os
import platform
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from snaketrain.manifests import write_json

PATIENCE_SECONDS = 120  # to save and end; after that it is killed


def end_previous_owner(folder: Path) -> None:
    """Whoever still writes to the folder saves and ends."""
    try:
        owner = json.loads((folder / "owner.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        owner = {}
    ours = _ourselves()
    if owner.get("job") and owner["job"] != ours["job"]:
        _end_job(owner["job"], folder)
    elif not owner.get("job") and owner.get("host") == ours["host"] and owner.get("pid") != ours["pid"]:
        _end_process(owner, folder)


def sign(folder: Path) -> None:
    """Write down that we write here now."""
    write_json(folder / "owner.json", _ourselves())


def _ourselves() -> dict[str, Any]:
    # what started us ends all of us: torchrun, where it is there
    pid = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()
    return {"job": os.environ.get("SLURM_JOB_ID"), "host": platform.node(), "pid": pid, "started": _started(pid)}


def _end_job(job: str, folder: Path) -> None:
    if _state(job):
        logging.warning("%s: the SLURM job %s still writes here, left over from another workflow; ending it", folder, job)
        subprocess.run(["scancel", job], check=False)
        _wait(lambda: not _state(job), f"SLURM job {job}")


def _state(job: str) -> str:
    """Nothing if the job is over, or never was."""
    try:
        done = subprocess.run(["squeue", "--noheader", "--job", job, "--format", "%T"], capture_output=True, text=True)
    except FileNotFoundError:
        return ""  # no SLURM here
    return done.stdout.strip() if done.returncode == 0 else ""


def _end_process(owner: dict[str, Any], folder: Path) -> None:
    pid = owner["pid"]

    def lives() -> bool:
        return _started(pid) == owner["started"] is not None

    if lives():
        logging.warning("%s: process %d still writes here, left over from another workflow; ending it", folder, pid)
        os.kill(pid, signal.SIGTERM)
        if not _wait(lambda: not lives(), f"process {pid}"):
            os.kill(pid, signal.SIGKILL)


def _started(pid: int) -> int | None:
    """When a process started, which tells it from a later one with the same number; none if there is none."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else int(fields[18])


def _wait(over: Any, what: str) -> bool:
    end = time.monotonic() + PATIENCE_SECONDS
    while not over():
        if time.monotonic() > end:
            logging.warning("%s did not end within %d seconds", what, PATIENCE_SECONDS)
            return False
        time.sleep(0.5)
    return True
