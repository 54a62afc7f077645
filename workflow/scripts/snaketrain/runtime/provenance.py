"""The provenance of a training: the commit with its changes, the user's own files, packages, machine and SLURM job."""

import contextlib
import os
import platform
import shutil
import subprocess
import time
from importlib import metadata
from pathlib import Path

from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.manifests import write_text
from snaketrain.runtime.private_files import PRIVATE_FILE
from snaketrain.runtime.processes import start_ticks
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.slurm.client import Slurm, SlurmError


def git_state() -> JsonObject:
    """The commit of the code, and whether there are uncommitted changes."""
    commit = git("rev-parse", "HEAD")
    return {
        "commit": commit and commit.strip(),
        "dirty": None if commit is None else bool(git("status", "--porcelain", "--untracked-files=no")),
    }


def own_files(code: list[str]) -> list[str]:
    """The user's own files among `code.<module or file>=<digest>`: relative to the working directory if possible."""
    names = [string.rpartition("=")[0].removeprefix("code.") for string in code if string.startswith("code.")]
    return [name for name in names if name.endswith(".py")]


def write_provenance(folder: Path, dirty: bool | None, code: list[str]) -> None:
    """Write `packages.txt` for pip, uncommitted changes to `code.diff`, and copies of the user's own files to `code/`."""
    described = (each.metadata for each in metadata.distributions())  # which are parsed at each access
    packages = sorted({f"{each['Name']}=={each['Version']}" for each in described})
    write_text(folder / "packages.txt", hidden("".join(f"{each}\n" for each in packages)), PRIVATE_FILE)
    (folder / "code.diff").unlink(missing_ok=True)  # from the previous attempt
    shutil.rmtree(folder / "code", ignore_errors=True)
    # hidden, since a file may contain a password
    if dirty:
        write_text(folder / "code.diff", hidden(uncommitted_changes()), PRIVATE_FILE)
    for name in own_files(code):
        write_text(folder / copy_of(name), hidden(Path(name).read_text(encoding="utf-8")), PRIVATE_FILE)


def uncommitted_changes() -> str:
    """A patch that `git apply` takes, whatever the user's configuration of `git diff`."""
    return git("diff", "--no-ext-diff", "--no-color", "--src-prefix=a/", "--dst-prefix=b/", "HEAD") or ""


def copy_of(name: str) -> str:
    """The path of the copy of a user's own file, in a training's folder and in MLflow."""
    return "/".join(["code", *(part for part in Path(name).parts if part not in ("/", ".."))])


def place() -> JsonObject:
    """The machine; under SLURM also the job, and how long it waited in the queue."""
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


def git(*words: str) -> str | None:
    """The output of git; None without git or a repository."""
    try:
        done = subprocess.run(["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True, errors="replace")
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
