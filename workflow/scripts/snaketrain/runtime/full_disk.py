"""A disk that takes no more is told in one line, whichever library met it."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of this disk is used up",
    errno.EFBIG: "the file would be larger than is allowed here",
    errno.EROFS: "the file system can only be read",
}
BYTES_OF_A_FULL_DISK = 1 << 16  # what is left of it is too little for whatever is written next


def explained(error: BaseException, folder: Path) -> BaseException:
    """What to end with: what can be done about a full disk, or the error as it is."""
    if isinstance(error, SystemExit):  # explained already
        return error
    for each in _with_causes(error):
        if isinstance(each, OSError) and each.errno in REASONS:
            return _told(each.filename2 or each.filename or folder, REASONS[each.errno])  # of a copy the second is written
        # some libraries keep the words only, and others nothing of it
        if reason := next((reason for number, reason in REASONS.items() if os.strerror(number) in str(each)), None):
            return _told(folder, reason)
    if isinstance(error, OSError | RuntimeError) and folder.exists() and shutil.disk_usage(folder).free < BYTES_OF_A_FULL_DISK:
        return _told(folder, f"{REASONS[errno.ENOSPC]} ({error})")
    return error


def _told(path: str | Path, reason: str) -> SystemExit:
    return SystemExit(
        f"{path}: cannot be written: {reason}. Make room, or put the project elsewhere, and run the same command again: what is "
        "finished stays, and what is half-written is made anew."
    )


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error:
        yield error
        error = error.__cause__ or error.__context__
