"""The setting `compute.stage_environment`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

if TYPE_CHECKING:
    from snaketrain.config.schema import Compute, Settings

FIELDS = {
    "compute": {
        "stage_environment": (
            str | None,
            Field(
                None,
                description="a folder on each node's own disk, such as `/local/scratch` or `$TMPDIR`: the Python environment is copied there once, and "
                "training and evaluation import from the copy",
            ),
        )
    }
}
SHELL = ("stage_environment",)  # takes variables as a shell does


def folder_of(compute: "Compute") -> str | None:
    return compute.stage_environment  # type: ignore[attr-defined]  # one of FIELDS


def contradictions(run: "Settings") -> Iterator[str]:
    folder = folder_of(run.compute)
    if folder is not None and not folder.startswith(("/", "$")):
        yield f"compute: `stage_environment` is {folder!r}: write an absolute path on the nodes' own disks, or a variable such as $TMPDIR"
    if run.compute.container and folder:
        yield "compute: `stage_environment` copies a virtual environment, but the `container` has its own Python: remove one of them"
