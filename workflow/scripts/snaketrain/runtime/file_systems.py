"""What a file system is and does: its kind, its locks, why it cannot be written to, and a copy of the environment on a node's own disk."""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

NETWORK = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "fhgfs", "ceph", "glusterfs", "cifs", "smb3", "9p", "afs", "orangefs", "wekafs",
           "panfs")  # fmt: skip
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def kind(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Such as `ext4` or `nfs4`; None where there is no /proc."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    wanted, found, longest = path.resolve(), None, -1
    for line in lines:
        mount, _, system = line.partition(" - ")
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), mount.split()[4]))
        if wanted.is_relative_to(point) and len(point.parts) >= longest:  # of two at the same place the later one hides the other
            found, longest = system.split()[0], len(point.parts)
    return found


def is_network(kind: str | None) -> bool:
    return kind is not None and (kind in NETWORK or kind.startswith("fuse."))


def has_locks(folder: Path) -> bool:
    """Tried with the kind of lock that SQLite uses."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # a folder that does not exist or cannot be written to is reported by whoever writes to it
        return error.errno not in NO_LOCKS
    return True


def let_hub_do_without_locks(folder: Path) -> None:
    """`huggingface_hub` locks the files that it downloads to `folder`. Without locks it uses lock files, but only after ENOSYS."""
    if not has_locks(folder):
        import filelock
        from huggingface_hub.utils import _fixes

        _fixes.FileLock = filelock.SoftFileLock  # type: ignore[attr-defined]  # not public; there is no other way


# --- Turns errors of a full disk, or of one that may not be written, into a message of one line, whichever library raised them.

REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is exceeded",
    errno.EFBIG: "the file would exceed the size limit",
    errno.EROFS: "the file system is read-only",
}
BYTES_OF_A_FULL_DISK = 1 << 16  # with less free space than this, any further write fails


def explained(error: BaseException, folder: Path) -> BaseException:
    """The error to exit with: a message about a full disk or a read-only folder, or the given error."""
    if isinstance(error, SystemExit):  # explained already
        return error
    for each in _with_causes(error):
        # for a copy, the second file is the one written
        written = (each.filename2 or each.filename or folder) if isinstance(each, OSError) else folder
        if isinstance(each, OSError) and each.errno in REASONS:
            return _write_error(written, REASONS[each.errno])
        if isinstance(each, PermissionError) and (path := _not_writable(Path(written))):
            remedy = f"Change the permissions of {folder}, or move the project, and run the same command again."
            return SystemExit(f"{path}: cannot be written: you have no permission. {remedy}")
        # some libraries keep only the message, and others not even that
        if reason := next((reason for number, reason in REASONS.items() if os.strerror(number) in str(each)), None):
            return _write_error(folder, reason)
    if isinstance(error, OSError | RuntimeError) and folder.exists() and shutil.disk_usage(folder).free < BYTES_OF_A_FULL_DISK:
        return _write_error(folder, f"{REASONS[errno.ENOSPC]} ({error})")
    return error


def _write_error(path: str | Path, reason: str) -> SystemExit:
    return SystemExit(
        f"{path}: cannot be written: {reason}. Free some space, or move the project, and run the same command again: finished "
        "results are kept, and incomplete ones are made again."
    )


def _not_writable(path: Path) -> Path | None:
    """The path, if it is there and only writing it is not allowed, or if its folder takes no new file; a file may also be unreadable."""
    if path.exists():
        return path if os.access(path, os.R_OK) and not os.access(path, os.W_OK) else None
    above = next(each for each in path.absolute().parents if each.exists())
    return None if os.access(above, os.W_OK) else path


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error:
        yield error
        error = error.__cause__ or error.__context__


# --- A copy of the virtual environment on a node's own disk: hundreds of ranks that import torch would overload a shared file system. The
# environment is packed once, where snakemake runs; a node reads one large file instead of tens of thousands of small ones, once for each
# state of the environment. A copied environment works when its own `bin/python` is started; only its scripts name the old place.

ARCHIVES = Path(".snakemake/snaketrain-environment")
UNUSED_SECONDS = 7 * 24 * 3600  # after which a copy of another state is deleted


class CannotStage(Exception):
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
