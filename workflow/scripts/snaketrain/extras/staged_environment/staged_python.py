"""Execute Python from a copy of its virtual environment on this machine's own disk. If no copy can be made, a line says why, and Python is
executed from the environment itself.

Hundreds of ranks that import torch would overload a shared file system. The environment is packed once, where snakemake runs; a node reads one
large file instead of tens of thousands of small ones, once for each state of the environment. A copied environment works when its own `bin/python`
is started; only its scripts name the old place. This script imports only the standard library: the rest would come from the shared file system.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

ARCHIVES = Path(".snakemake/snaketrain-environment")
UNUSED_SECONDS = 7 * 24 * 3600  # after which a copy of another state is deleted


class CannotStage(OSError):
    """The environment is used where it is."""


def environment_digest() -> str:
    """Changes with each package that is installed, updated or removed; not when modules are compiled at their first import."""
    packages = Path(sysconfig.get_path("purelib"))
    files = [*packages.glob("*.dist-info/RECORD"), *(path for path in packages.iterdir() if path.is_file()), Path(sys.prefix, "pyvenv.cfg")]
    stamps = sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.exists())
    return hashlib.sha256(repr((sys.prefix, stamps)).encode()).hexdigest()[:16]


def pack_environment(report: Callable[[str], None]) -> Path:
    """The archive of the environment, made unless it is there."""
    if sys.prefix == sys.base_prefix:
        raise CannotStage(f"{sys.executable} is not in a virtual environment; `make .venv/installed` makes one")
    archive = ARCHIVES / f"{environment_digest()}.tar"
    if not archive.exists():
        report(f"compute.stage_environment: packing {sys.prefix} for the nodes")
        shutil.rmtree(ARCHIVES, ignore_errors=True)  # of other states
        ARCHIVES.mkdir(parents=True)
        partial = archive.with_suffix(f".{os.getpid()}")
        run_tar("-C", sys.prefix, "-cf", str(partial), ".")
        partial.rename(archive)
    return archive


def python_in_copy(target: str, archives: Path) -> Path:
    """The Python of this node's copy, which is made if it is missing. The copy stays locked while this process lives, whatever it executes."""
    name = environment_digest()
    folder = own_folder(target)
    remove_unused(folder, name)
    in_use, copy = lock(folder / f"{name}.lock", fcntl.LOCK_SH), folder / name
    os.utime(in_use)
    os.set_inheritable(in_use, True)
    making = lock(folder / f"{name}.making", fcntl.LOCK_EX)  # several jobs may start here at once
    try:
        if not copy.exists():
            extract(archives / f"{name}.tar", copy)
    finally:
        os.close(making)
    return copy / Path(sys.executable).relative_to(sys.prefix)


def own_folder(target: str) -> Path:
    """A folder for this user alone, in one that all users may share."""
    expanded = os.path.expandvars(target)
    if not expanded.startswith("/") or "$" in expanded:
        raise CannotStage(f"{target} is not an absolute path on this node: it expands to {expanded!r}")
    folder = Path(expanded, f"snaketrain-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise CannotStage(f"{folder} belongs to another user")
    return folder


def lock(path: Path, kind: int) -> int:
    """Held until what is returned is closed."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, kind)
    except OSError:
        os.close(file)
        raise
    return file


def extract(archive: Path, copy: Path) -> None:
    if not archive.exists():
        raise CannotStage(f"{archive} is missing: the environment was changed after snakemake was started")
    needed, free = archive.stat().st_size, shutil.disk_usage(copy.parent).free
    if free < needed:
        raise CannotStage(f"{copy.parent} has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} are needed")
    partial = copy.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a job that was killed
    partial.mkdir()
    try:
        run_tar("-C", str(partial), "-xf", str(archive))
    except CannotStage:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    partial.rename(copy)


def remove_unused(folder: Path, name: str) -> None:
    for path in folder.glob("*.lock"):
        if path.stem == name or time.time() - path.stat().st_mtime < UNUSED_SECONDS:
            continue
        with contextlib.suppress(BlockingIOError):  # in use
            unused = lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder / path.stem, ignore_errors=True)
            os.close(unused)


def run_tar(*words: str) -> None:
    done = subprocess.run(["tar", *words], capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise CannotStage(f"tar failed: {done.stderr.strip()[-300:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="folder for the copy, on a disk of this machine; variables such as $TMPDIR are expanded")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="the arguments of Python, after --")
    args = parser.parse_args()
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    try:
        python = str(python_in_copy(args.folder, ARCHIVES))
    except OSError as error:
        print(
            f"warning: compute.stage_environment on {platform.node()}: {error}. Python is started from {sys.prefix}.",
            file=sys.stderr,
            flush=True,
        )
        python = sys.executable
    os.execv(python, [python, *words])


if __name__ == "__main__":
    main()
