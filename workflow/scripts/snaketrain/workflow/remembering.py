"""What was found by reading files, kept on disk: Snakemake parses the Snakefile at every start, and files rarely change."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snaketrain.manifests import write_text

SECONDS_UNTIL_TRUSTED = 2.0  # a file can change twice within a tick of its clock, and keep its size


class Remembered:
    """A file is read again where its time or size has changed, and all of them where `version` has."""

    def __init__(self, store: Path, version: str):
        self.store, self.version, self.changed = store, version, False
        try:
            kept = json.loads(store.read_text(encoding="utf-8"))
            self.found = kept["found"] if kept["version"] == version else {}
        except (OSError, ValueError, LookupError, TypeError):  # none yet, or not a whole one
            self.found = {}

    def of(self, path: Path, read: Callable[[Path], Any]) -> Any:
        """What `read` finds in the file; plain values that JSON can hold."""
        status = path.stat()
        stamp = [status.st_mtime_ns, status.st_size]
        entry = self.found.get(str(path))
        if entry and entry[0] == stamp:
            return entry[1]
        found = read(path)
        if time.time() - status.st_mtime > SECONDS_UNTIL_TRUSTED:
            self.found[str(path)] = [stamp, found]
            self.changed = True
        return found

    def save(self) -> None:
        if self.changed and self.store.parent.is_dir():
            try:
                write_text(self.store, json.dumps({"version": self.version, "found": self.found}))
            except OSError:  # a folder that one may only read
                return
            self.changed = False
