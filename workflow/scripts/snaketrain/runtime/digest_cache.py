"""Caches digests and other results of reading files on disk, since reading takes long and files rarely change."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from snaketrain.runtime.manifests import read_if_intact, write_checked
from snaketrain.runtime.strict_json import Json

OWN_FILES = Path(".snakemake/snaketrain-files.json")  # digests of the user's own files, which each start of the workflow compares
SECONDS_UNTIL_TRUSTED = 2.0  # a file can change twice within the resolution of its timestamp, and keep its size


class DigestCache:
    """A file is read again if its size, times or inode have changed, and every file if `version` has."""

    def __init__(self, store: Path, version: str):
        self.store, self.version, self.changed = store, version, False
        self.found: dict[str, list[Json]] = {}  # a file's stamp, and the result of reading it
        kept = read_if_intact(store, "the files beside it are read again")
        if kept and kept["version"] == version:
            self.found = kept["found"]

    def known(self, path: Path, name: str | None = None) -> bool:
        """Whether the file need not be read again; its key is its path unless a name is given."""
        entry = self.found.get(name or str(path))
        return entry is not None and entry[0] == stamp(path.stat())

    def of(self, path: Path, read: Callable[[Path], Json], name: str | None = None, ours: bool = False) -> Json:
        """What `read` returns for the file, a JSON value; `ours`: no other process writes to it now."""
        before = path.stat()
        if self.known(path, name):
            return self.found[name or str(path)][1]
        found = read(path)
        settled = ours or time.time() - before.st_mtime > SECONDS_UNTIL_TRUSTED
        if settled and stamp(path.stat()) == stamp(before):
            self.found[name or str(path)] = [stamp(before), found]
            self.changed = True
        return found

    def save(self) -> None:
        if self.changed and self.store.parent.is_dir():
            try:
                write_checked(self.store, {"version": self.version, "found": self.found}, indent=None)
            except OSError:  # a read-only folder or a full disk
                return
            self.changed = False


def stamp(status: os.stat_result) -> list[int]:
    """Differs after every write: a program can reset a file's modification time, but not `st_ctime`."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
