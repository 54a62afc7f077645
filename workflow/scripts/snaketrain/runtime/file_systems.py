"""What a file system is and does: its kind, its locks, and why it cannot be written to."""

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
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
