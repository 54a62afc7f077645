"""What kind of file system a folder is on, and whether it has the locks that SQLite needs."""

import errno
import fcntl
import re
import tempfile
from pathlib import Path

NETWORK = (
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "fhgfs",
    "ceph",
    "glusterfs",
    "cifs",
    "smb3",
    "9p",
    "afs",
    "orangefs",
    "wekafs",
    "panfs",
)
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
