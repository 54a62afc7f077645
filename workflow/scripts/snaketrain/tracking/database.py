"""MLflow's database as a file: whether MLflow can use it at its place, and a copy to look at where it cannot."""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.file_systems import has_locks, kind

SQLITE = "sqlite:///"
ARTIFACTS = "mlartifacts"  # the folder beside the database
WITH_PATHS = {"experiments": "artifact_location", "runs": "artifact_uri", "logged_models": "artifact_location"}  # MLflow's tables


def must_be_copied(database: Path) -> str | None:
    """Why MLflow cannot use a database at its place; None if it can."""
    if "?" in str(database):  # for SQLAlchemy the end of the path
        return "its path has a question mark, with which MLflow opens no database"
    return None if has_locks(database.parent) else f"its file system ({kind(database.parent)}) has no file locks"


def location(folder: Path) -> str:
    """The location of artifacts. MLflow reads a plain path as part of an address, in which these characters are special."""
    return folder.absolute().as_uri() if set(str(folder)) & set("%#?") else str(folder)


def find_artifacts(database: Path, artifacts: Path) -> None:
    """Correct the absolute paths that MLflow keeps, after the project was moved or copied: files would be read and written at its old place."""
    if not artifacts.is_dir():  # a copy of the database alone, to look at it
        return
    here = location(artifacts)
    with contextlib.closing(sqlite3.connect(database)) as tables, tables:
        if not tables.execute("SELECT 1 FROM sqlite_master WHERE name = 'experiments'").fetchone():  # MLflow says what it is instead
            return
        folders = {place.rpartition("/")[0] for (place,) in tables.execute("SELECT artifact_location FROM experiments")}
        for there in sorted(each for each in folders - {here} if each.endswith(f"/{ARTIFACTS}")):
            with contextlib.suppress(OSError):  # that place is not there any more
                if os.path.samefile(unquote(there.removeprefix("file://")) if there.startswith("file:") else there, artifacts):
                    continue  # by another name, such as a link
            for table, column in WITH_PATHS.items():
                below = f"substr({column}, {len(there) + 1})"
                tables.execute(f"UPDATE {table} SET {column} = ? || {below} WHERE {column} = ? || {below}", (here, there))
            print(f"{database}: came from {Path(there).parent}; MLflow now finds the files of its runs in {artifacts}.", flush=True)


@contextlib.contextmanager
def readable(uri: str) -> Iterator[str]:
    """The address of what is there, or of a copy, if the database is where it cannot be opened."""
    if uri.startswith("file:") or ("://" not in uri and uri != "databricks"):
        raise SystemExit(
            f"--uri: {hidden(uri)} is not the address of a server or database. Write one such as http://host:5000 or sqlite:////absolute/path/mlflow.db."
        )
    database = Path(uri.removeprefix(SQLITE))
    if uri.startswith(SQLITE) and not database.is_file():  # MLflow would make one
        raise SystemExit(f"{database}: there are no results yet. Run `make demo` first, or snakemake in this folder.")
    if not uri.startswith(SQLITE) or not (why := must_be_copied(database)):
        if uri.startswith(SQLITE):
            find_artifacts(database, database.parent / ARTIFACTS)
        yield uri
        return
    with tempfile.TemporaryDirectory(prefix="snaketrain-mlflow-") as folder:
        copy = Path(folder, "mlflow.db")
        replace(database, copy)
        find_artifacts(copy, database.parent / ARTIFACTS)
        print(f"{database}: {why}, so you see a copy that is made now; changes to it are lost at the end.", flush=True)
        yield f"{SQLITE}{copy}"


def replace(source: Path, target: Path) -> None:
    """Without locks: a reader finds the old file or the new one."""
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, beside)
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
