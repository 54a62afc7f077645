"""MLflow's database as a file: whether MLflow can use it at its place, and a copy to look at where it cannot."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.file_systems import has_locks, kind

SQLITE = "sqlite:///"


def must_be_copied(database: Path) -> str | None:
    """Why MLflow cannot use a database at its place; None if it can."""
    if "?" in str(database):  # for SQLAlchemy the end of the path
        return "its path has a question mark, with which MLflow opens no database"
    return None if has_locks(database.parent) else f"its file system ({kind(database.parent)}) has no file locks"


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
        yield uri
        return
    with tempfile.TemporaryDirectory(prefix="snaketrain-mlflow-") as folder:
        copy = Path(folder, "mlflow.db")
        replace(database, copy)
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
