"""The setting `compute.exclude_slow_nodes`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

if TYPE_CHECKING:
    from snaketrain.config.schema import Settings

FIELDS = {
    "compute": {
        "exclude_slow_nodes": (
            bool,
            Field(
                False,
                description="under SLURM, start next time without nodes on which a rank computed at least 1.2 times as long as most others: within the "
                "job where `nodes` leaves enough of them, else when it is requeued",
            ),
        )
    }
}


def contradictions(run: "Settings") -> Iterator[str]:
    if run.compute.exclude_slow_nodes and run.compute.nodes == "1":  # type: ignore[attr-defined]  # one of FIELDS
        yield "compute: `exclude_slow_nodes` does nothing with one node: remove it, or set `nodes`"
