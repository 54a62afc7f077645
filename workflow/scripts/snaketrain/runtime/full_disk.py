"""Turns errors of a full disk, or of one that may not be written, into a message of one line, whichever library raised them."""

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
    """The error to exit with: a message about a full disk or a read-only folder, or the given error."""
    if isinstance(error, SystemExit):  # explained already
        return error
    for each in _with_causes(error):
        if isinstance(each, OSError) and each.errno in REASONS:
            return _write_error(
                each.filename2 or each.filename or folder, REASONS[each.errno]
            )  # for a copy, the second file is the one written
        if isinstance(each, PermissionError) and (path := _not_writable(Path(each.filename2 or each.filename or folder))):
            return SystemExit(
                f"{path}: cannot be written: you have no permission. Change the permissions of {folder}, or move the project, and run the same command again."
            )
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
