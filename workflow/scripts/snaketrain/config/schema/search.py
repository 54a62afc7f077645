"""The section `search`, which is about several runs together."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from snaketrain.config.schema.base import Positive, Section, Seed, with_numbers
from snaketrain.runtime.strict_json import Json

Share = Annotated[float, Field(gt=0.0, lt=1.0)]


class Search(Section):
    """Successive halving of a sweep: its runs train up to a rung, are compared on the development set, and only the best continue."""

    rungs: list[Share] = Field([0.1, 0.3], min_length=1, description="shares of a run's steps at which its sweep is thinned out")
    keep: Share = Field(
        0.25, description="share of the runs at a rung that continue, at least one; runs that differ only in `train.seed` count as one"
    )
    keep_tied: Share = Field(
        0.5, description="runs that a paired test on the development set cannot tell from the best continue as well, up to this share"
    )

    def contradictions(self) -> Iterator[str]:
        if self.rungs != sorted(set(self.rungs)):
            yield f"`rungs` ({', '.join(f'{rung:g}' for rung in self.rungs)}) must rise: name each share once, the smallest first"
        if self.keep_tied < self.keep:
            yield f"`keep_tied` ({self.keep_tied:g}) is below `keep` ({self.keep:g}), which continue in any case: make it as large, or larger"


class Range(Section):
    """Values of a setting between two bounds, which are included; whole numbers if both are."""

    low: int | float = Field(description="the lowest")
    high: int | float = Field(description="the highest")
    log: bool = Field(False, description="on a logarithmic scale, as for learning rates")

    def contradictions(self) -> Iterator[str]:
        if self.low >= self.high:
            yield f"`low` ({self.low:g}) is not below `high` ({self.high:g}): swap them, or give a list with one value"
        if self.log and self.low <= 0:
            yield f"`low` ({self.low:g}) is not above 0, which a logarithmic scale needs: raise it, or remove `log`"


class Sampling(Section):
    """Runs whose settings an Optuna sampler proposes, by the results of those before them. They change the common sections, as `runs` do."""

    space: dict[str, Range | list[Json]] = Field(
        min_length=1,
        description="by setting, such as `train.learning_rate`: a range, `{low: 1e-6, high: 1e-3, log: true}`, or a list of values",
    )
    trials: Positive = Field(20, description="runs in all")
    at_once: Positive = Field(4, description="runs that are proposed together, and train at the same time")
    seed: Seed = Field(0, description="seed of the sampler")

    def contradictions(self) -> Iterator[str]:
        if empty := [name for name, values in self.space.items() if values == []]:
            yield f"`space.{empty[0]}` has no value: name some"

    def values(self, name: str) -> Range | list[Json]:
        found = self.space[name]
        return found if isinstance(found, Range) else [with_numbers(value) for value in found]
