"""The provenance of a result: the commit with its changes, the user's own files, versions of packages, machine and SLURM job."""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.manifests import PRIVATE_FILE, write_text
from snaketrain.runtime.processes import start_ticks
from snaketrain.runtime.strict_json import JsonObject, shortened
from snaketrain.slurm.client import Slurm, SlurmError


def git_state() -> JsonObject:
    """The commit of the code, and whether there are uncommitted changes."""
    commit = git("rev-parse", "HEAD")
    return {
        "commit": commit and commit.strip(),
        "dirty": None if commit is None else bool(git("status", "--porcelain", "--untracked-files=no")),
    }


def own_files(code: Iterable[str]) -> list[str]:
    """The user's own files among the names of modules and files: relative to the working directory if possible."""
    return [name for name in code if name.endswith(".py")]


def write_provenance(folder: Path, dirty: bool | None, code: Iterable[str]) -> None:
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


# --- The versions of the packages that compute results: recorded with each result, and compared with those that are installed now.

COMPUTING = ("torch", "triton", "torchao", "transformers", "tokenizers", "peft", "fairscale", "numpy", "scipy", "pandas", "pyarrow",
             "scikit-learn", "statsmodels", "torchmetrics", "rouge-score", "sacrebleu", "optuna")  # fmt: skip
MODULES = {"scikit-learn": "sklearn", "rouge-score": "rouge_score"}  # of the others, the module has the package's name


@cache
def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def all_installed() -> dict[str, str]:
    """Those that any stage computes with."""
    return {name: version for name in COMPUTING if (version := installed(name))}


def in_use() -> dict[str, str]:
    """Those that this process has imported."""
    return {name: version for name, version in all_installed().items() if MODULES.get(name, name) in sys.modules}


def differing(recorded: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """By package, the recorded version and the one that is installed now."""
    now = {name: installed(name) or "none" for name in recorded}
    return {name: (version, now[name]) for name, version in recorded.items() if now[name] != version}


def described(found: Mapping[str, tuple[str, str]]) -> str:
    """`torch 2.13.0 (now 2.14.0), numpy 2.3.0 (now 2.4.0)`."""
    return shortened([f"{name} {before} (now {now})" for name, (before, now) in sorted(found.items())], most=4)


def one_after_the_other(attempts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Those of a training of several attempts: `2.13.0, then 2.14.0` where they changed in between."""
    found: dict[str, list[str]] = {}
    for versions in attempts:
        for name, version in versions.items():
            known = found.setdefault(name, [])
            if not known or known[-1] != version:
                known.append(version)
    return {name: ", then ".join(known) for name, known in found.items()}
