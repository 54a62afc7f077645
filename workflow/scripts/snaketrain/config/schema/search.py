"""The section `search`, which is about the runs of a sweep together."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from snaketrain.config.schema.base import Section

Share = Annotated[float, Field(gt=0.0, lt=1.0)]


class Search(Section):
    """Successive halving of a sweep: its runs train up to a rung, are compared on the development set, and only the best continue."""

    rungs: list[Share] = Field([0.1, 0.3], min_length=1, description="shares of a run's steps at which its sweep is thinned out")
    keep: Share = Field(0.25, description="share of the runs at a rung that continue; at least one does")
    keep_tied: Share = Field(
        0.5, description="runs that a paired test on the development set cannot tell from the best continue as well, up to this share"
    )

    def contradictions(self) -> Iterator[str]:
        if self.rungs != sorted(set(self.rungs)):
            yield f"`rungs` ({', '.join(f'{rung:g}' for rung in self.rungs)}) must rise: name each share once, the smallest first"
        if self.keep_tied < self.keep:
            yield f"`keep_tied` ({self.keep_tied:g}) is below `keep` ({self.keep:g}), which continue in any case: make it as large, or larger"
