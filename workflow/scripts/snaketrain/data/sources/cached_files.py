"""Files of an object store for a dataset class of yours, through a folder of bounded size that the processes of a node share."""

import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from snaketrain.data.sources.objects import StoredFile, Unreachable, download, open_store, stored_files
from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.full_disk import explained

FOLDER = "SNAKETRAIN_CACHE"  # the environment variable
LOCK = "lock"
COPY = re.compile(r"[0-9a-f]{16}(\.part)?")  # the name of a copy: the folder may have been there before, with other files


class CachedFiles:
    """The files at an address such as `s3://bucket/shards/*.jsonl`.

    `open` copies a file to this node unless another process has done so, and removes those that were used longest ago, so that all
    copies together take at most `gigabytes`. A file that is removed while it is being read is read to its end.
    """

    def __init__(self, address: str, gigabytes: float = 10.0, folder: str | Path | None = None):
        self.address, self.most_bytes = address, int(gigabytes * 1e9)
        self.folder = Path(folder or os.environ.get(FOLDER) or f"{tempfile.gettempdir()}/snaketrain-cache-{os.getuid()}")
        self._make_folder()
        try:
            self.files = stored_files(address)
        except Unreachable as error:
            raise self._error(str(error)) from None
        if not self.files:
            raise self._error("there is no file")
        if too_large := [each.name for each in self.files.values() if (each.size or 0) > self.most_bytes]:
            raise self._error(
                f"{too_large[0]} is larger than the cache may be, {gigabytes} GB. Allow more `gigabytes`, or write smaller files"
            )

    @property
    def names(self) -> list[str]:
        """Sorted, and relative to the folder that the address names, or to the first wildcard in it."""
        return list(self.files)

    def open(self, name: str) -> BinaryIO:
        """The content of a file."""
        wanted = self.files[name]
        with suppress(FileNotFoundError):
            return self._opened(wanted)
        with self._locked():
            with suppress(FileNotFoundError):  # another process has copied it meanwhile
                return self._opened(wanted)
            self._make_room(wanted.size or 0)
            self._download(wanted)
            return self._opened(wanted)

    def _opened(self, wanted: StoredFile) -> BinaryIO:
        path = self.folder / wanted.key
        file = open(path, "rb")  # noqa: SIM115 - the caller closes it
        with suppress(FileNotFoundError):
            os.utime(path)  # it is the one used last
        return file

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process of the node at a time. The lock ends with the process that holds it, however that ends."""
        self._make_folder()
        with open(self.folder / LOCK, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.folder.stat().st_uid != os.getuid():  # another user could have put other files there under the names of these
            raise SystemExit(f"{self.folder}: belongs to another user. Name another folder in {FOLDER}.")

    def _make_room(self, size: int) -> None:
        copies = [path for path in self.folder.iterdir() if COPY.fullmatch(path.name)]
        for path in copies:
            if path.suffix == ".part":  # of a process that was killed, since this one holds the lock
                path.unlink()
        used = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in copies if path.suffix != ".part")
        free = self.most_bytes - sum(length for _, length, _ in used)
        for _, length, path in used:
            if free >= size:
                break
            path.unlink()
            free += length

    def _download(self, wanted: StoredFile) -> None:
        try:
            download(open_store(self.address)[0], wanted, self.folder)
        except Unreachable as error:
            full = explained(error, self.folder)
            raise (self._error(str(error)) if full is error else full) from None

    def _error(self, problem: str) -> SystemExit:
        return SystemExit(hidden(f"{self.address}: {problem}. Check the address, the network, and the credentials in the environment."))
