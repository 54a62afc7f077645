"""Turns errors of a full disk into a message of one line, whichever library raised them."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is exceeded",
    errno.EFBIG: "the file would exceed the size limit",
    errno.EROFS: "the file system is read-only",
}
BYTES_OF_A_FULL_DISK = 1 << 16  # with less free space than this, any further write fails


def explained(error: BaseException, folder: Path) -> BaseException:
    """The error to exit with: a message about a full disk, or the given error."""
    if isinstance(error, SystemExit):  # explained already
        return error
    for each in _with_causes(error):
        if isinstance(each, OSError) and each.errno in REASONS:
            return _write_error(
                each.filename2 or each.filename or folder, REASONS[each.errno]
            )  # for a copy, the second file is the one written
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


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error:
        yield error
        error = error.__cause__ or error.__context__
