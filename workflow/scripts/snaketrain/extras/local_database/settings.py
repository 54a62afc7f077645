"""The setting `tracking.local_store`."""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

if TYPE_CHECKING:
    from snaketrain.config.schema import Settings, Tracking


def absolute(folder: str) -> str:
    if not Path(folder).is_absolute():
        raise ValueError(f"{folder!r} is not absolute: write a folder such as /local/scratch/me")
    return folder


FIELDS = {
    "tracking": {
        "local_store": (
            Annotated[str, AfterValidator(absolute)] | None,
            Field(
                None,
                description="if MLflow's database is on Lustre, NFS and the like: a folder on a local disk of the machine where snakemake runs; the "
                "database is written there, and copied to its place every minute and at the end",
            ),
        )
    }
}


def folder_of(given: "Tracking | Namespace") -> str | Path | None:
    """As the section has it, or the arguments of the follower."""
    return given.local_store  # type: ignore[union-attr]  # one of FIELDS


def contradictions(run: "Settings") -> Iterator[str]:
    if folder_of(run.tracking) and run.tracking.uri and not run.tracking.uri.startswith("sqlite:"):
        yield "tracking.local_store has no effect with a server, which has its own database: leave it out, or leave out tracking.uri"
