"""Where a training comes from and in what it ran: the code with its changes, the user's own, the packages, the machine, the SLURM job."""

import contextlib
import os
import platform
import shutil
import subprocess
import tarfile
import time
from importlib import metadata
from pathlib import Path

from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.json_types import JsonObject
from snaketrain.runtime.manifests import write_text
from snaketrain.runtime.processes import start_ticks
from snaketrain.slurm.client import Slurm, SlurmError


def git_state() -> JsonObject:
    """The commit of the code, and whether it was changed since."""
    commit = _git("rev-parse", "HEAD")
    return {
        "commit": commit and commit.strip(),
        "dirty": None if commit is None else bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def own_files(code: list[str]) -> list[str]:
    """Of `code.<module or file>=<digest>` the files, which are not the project's: relative to the working directory where they can be."""
    names = [string.rpartition("=")[0].removeprefix("code.") for string in code if string.startswith("code.")]
    return [name for name in names if name.endswith(".py")]


def write_down(folder: Path, dirty: bool | None, code: list[str]) -> None:
    """`packages.txt`, in the form that pip reads, where the code was changed since its commit `code.diff`, and the user's own in `code/`."""
    write_text(
        folder / "packages.txt",
        "".join(f"{hidden(name)}\n" for name in sorted({f"{d.name}=={d.version}" for d in metadata.distributions()})),
    )
    (folder / "code.diff").unlink(missing_ok=True)  # of the attempt before
    shutil.rmtree(folder / "code", ignore_errors=True)
    # in a configuration or elsewhere somebody may have written down a password
    if dirty:
        write_text(folder / "code.diff", hidden(_git("diff", "HEAD") or ""))
    for name in own_files(code):
        write_text(folder / copy_of(name), hidden(Path(name).read_text(encoding="utf-8")))


def copy_of(name: str) -> str:
    """Where in a training's folder, and in MLflow, one of its own files is kept."""
    return "/".join(["code", *(part for part in Path(name).parts if part not in ("/", ".."))])


def code_at(commit: str, changes: Path | None, folder: Path) -> Path | None:
    """This file's project in a folder, as it was at a commit with changes that were not committed; None where git cannot tell."""
    root = (_git("rev-parse", "--show-toplevel") or "").strip()
    if not root or _git("-C", root, "archive", f"--output={folder}/code.tar", commit) is None:
        return None
    with tarfile.open(folder / "code.tar") as archive:
        archive.extractall(folder, filter="data")
    if changes and subprocess.run(["git", "apply", changes.resolve()], cwd=folder, capture_output=True).returncode:
        return None
    return folder / Path(__file__).resolve().parents[4].relative_to(root)


def place() -> JsonObject:
    """The machine; under SLURM also the job, and for how long it had to wait."""
    job = os.environ.get("SLURM_JOB_ID")
    return {"host": platform.node()} | ({"job": job, "queued_seconds": _queued_seconds(job)} if job else {})


def seconds_alive() -> float:
    """How long this process has been running; 0 on systems without /proc."""
    ticks = start_ticks(os.getpid())
    return 0.0 if ticks is None else time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _queued_seconds(job: str) -> float | None:
    with contextlib.suppress(SlurmError):
        submitted = Slurm().submitted_at(job).timestamp()
        return round(max(0.0, time.time() - seconds_alive() - submitted), 3)
    return None


def _git(*words: str) -> str | None:
    """What git says; None where there is no git, or no repository."""
    try:
        done = subprocess.run(["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True, errors="replace")
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
