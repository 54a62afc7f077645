"""What the follower does with this extra: it opens MLflow's database on a local disk, as its option `--local-store` says or where it must."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.extras.local_database.settings import folder_of

if TYPE_CHECKING:
    from snaketrain.config.schema import Tracking
    from snaketrain.tracking.loop import DatabaseElsewhere


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--local-store",
        type=Path,
        metavar="FOLDER",
        help="a folder on a local disk in which the database is written; it is copied to its place every minute and at the end",
    )


def words(given: "Tracking | argparse.Namespace") -> list[str]:
    return [f"--local-store={folder}"] if (folder := folder_of(given)) else []


def problem(database: Path | None, arguments: argparse.Namespace) -> str | None:
    if arguments.local_store and not database:
        return "--local-store has no effect with a server, which has its own database"
    return None


def elsewhere(
    database: Path, arguments: argparse.Namespace
) -> "tuple[Callable[[Path, Callable[[], None]], DatabaseElsewhere] | None, str | None]":
    from snaketrain.extras.local_database.local_database import LocalDatabase, folder_for

    folder, warning = folder_for(database, arguments.local_store)
    return partial(LocalDatabase, database, folder) if folder else None, warning
