"""MLflow's database on a local disk while it is written to, and copied back to its place: SQLite needs locks that network file systems
lack or get wrong.

Nothing depends on the local file. If it is lost, everything since the last copy is sent again from the journals: a local database has an
id in its path, the runs' `.mlflow.json` files name that path, and a file that names another one is ignored.
"""

import contextlib
import os
import shutil
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from snaketrain.runtime.file_systems import has_locks, is_network, kind
from snaketrain.runtime.manifests import digest, stamp_of, write_json
from snaketrain.tracking.database import ARTIFACTS, SQLITE, must_be_copied, replace
from snaketrain.tracking.tracked import read_json

RECORD = ".mlflow_copy.json"  # in the results: the state of the copy when it was made
BESIDE = ("-journal", "-wal", "-shm")  # SQLite's own files
COPY_EVERY_SECONDS = 60.0
MOST_TIME = 0.05  # the share of time that may be spent on copying a large database


class LocalDatabase:
    def __init__(self, database: Path, folder: Path, results: Path, check: Callable[[], None] = lambda: None):
        """`database`: its place; `folder`: on a local disk; `check` raises where nothing may be written any more."""
        self.database, self.record, self.check = database, results / RECORD, check
        self.folder = folder / f"snaketrain-mlflow-{digest(str(database))}"
        found = read_json(self.record) or {}
        self.id, unchanged = str(found.get("id")), found.get("stamp") == stamp_of(database)
        if not (unchanged and (found.get("complete") or self.path.exists())):
            self.id = uuid.uuid4().hex[:12]
            shutil.rmtree(self.folder, ignore_errors=True)  # of a follower that was killed
        if not self.path.exists():
            self._seed()
        self._copied: list[int] | None = None
        self._copy_at = time.monotonic() + COPY_EVERY_SECONDS
        self._note(complete=False)

    @property
    def path(self) -> Path:
        return self.folder / self.id / "mlflow.db"

    @property
    def uri(self) -> str:
        return f"{SQLITE}{self.path}"

    @property
    def artifacts(self) -> Path:
        return self.database.parent / ARTIFACTS

    def copy_when_due(self) -> str | None:
        """Copy it if the last copy is old; returns a warning, if there is one."""
        return self.copy() if time.monotonic() >= self._copy_at else None

    def copy(self, complete: bool = False) -> str | None:
        """Replace the database at its place; `complete`: nothing more is sent to the local one. Returns a warning, if there is one."""
        began, warning = time.monotonic(), None
        state = stamp_of(self.path)
        if changed := state != self._copied or not self.database.exists():
            whole = self.path.with_name("copy.db")
            with contextlib.closing(sqlite3.connect(self.path)) as source, contextlib.closing(sqlite3.connect(whole)) as target:
                source.backup(target)
            self.check()
            warning = self._set_aside_changes()
            for ending in BESIDE:  # of the database that is replaced; SQLite would apply them to the new one
                Path(f"{self.database}{ending}").unlink(missing_ok=True)
            replace(whole, self.database)
            whole.unlink()
            self._copied = state
        if changed or complete:
            self._note(complete)
        self._copy_at = time.monotonic() + max(COPY_EVERY_SECONDS, (time.monotonic() - began) / MOST_TIME)
        return warning

    def remove(self) -> None:
        """Remove the local database if it was copied completely; otherwise the next follower on this machine continues with it."""
        if self._is_complete:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _seed(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.parent.mkdir(exist_ok=True)
        if not has_locks(self.path.parent):
            raise OSError(f"{self.path.parent}: its file system has no file locks either; tracking.local_store must be on a local disk")
        for ending in (*BESIDE, ""):  # the database last: its presence says that it is whole
            with contextlib.suppress(FileNotFoundError):
                replace(Path(f"{self.database}{ending}"), Path(f"{self.path}{ending}"))

    def _set_aside_changes(self) -> str | None:
        """Keep a copy that was changed meanwhile, such as in MLflow's pages, instead of overwriting it; returns a warning."""
        current = stamp_of(self.database)
        if current is None or current == (read_json(self.record) or {}).get("stamp"):
            return None
        aside = self.database.with_name(f"{self.database.name}.changed-{time.strftime('%Y%m%d-%H%M%S')}")
        os.replace(self.database, aside)
        return (
            f"{self.database} was changed while {self.path} replaces it every {COPY_EVERY_SECONDS:g} seconds; the changed one is now {aside}. "
            "Edit runs in MLflow's pages when no workflow runs"
        )

    def _note(self, complete: bool) -> None:
        self.check()
        self._is_complete = complete
        write_json(self.record, {"id": self.id, "stamp": stamp_of(self.database), "complete": complete})


def folder_for(database: Path, given: Path | None) -> tuple[Path | None, str | None]:
    """The folder for a local database, None if none is needed; and a warning, if there is one."""
    if given:
        known = kind(given)
        return given, f"tracking.local_store: {given} is on a network file system ({known}). Name a folder on a local disk" if is_network(
            known
        ) else None
    system = kind(database.parent)
    instead = "Set tracking.local_store (--local-store) to a folder on a local disk, or tracking.uri to an MLflow server"
    if why := must_be_copied(database):
        temporary = Path(tempfile.gettempdir())
        return temporary, f"{database}: {why}, so MLflow's database is written in {temporary} and copied. {instead}"
    if is_network(system):
        return None, f"{database}: its file system ({system}) is a network one, where SQLite is slow and may be damaged. {instead}"
    return None, None
