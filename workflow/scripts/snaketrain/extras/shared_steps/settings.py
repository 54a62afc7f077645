"""The section `shared_steps` of the configuration."""

from typing import TYPE_CHECKING

from pydantic import Field

from snaketrain.config.schema.base import Positive, Section

if TYPE_CHECKING:
    from snaketrain.config.schema import Settings


class SharedSteps(Section):
    """Whether runs that begin with the same steps train them once. Changing it makes nothing stale."""

    at_least: Positive | None = Field(
        1000,
        description="runs that differ only in `train.schedule`, `warmup` and `steps` have the same learning rates at first; if sharing these steps saves at "
        "least this many in all, a job `train_trunk` trains them once; null: each run trains alone. The results are the same",
    )


SECTIONS = {"shared_steps": (SharedSteps, SharedSteps())}


def shared_steps(run: "Settings") -> SharedSteps:
    """The section of a run, which the type that the core declares does not have."""
    return vars(run)["shared_steps"]
