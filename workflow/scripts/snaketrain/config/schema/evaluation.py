"""The sections `select` and `evaluate`."""

from typing import Annotated, Literal

from pydantic import Field

from snaketrain.config.schema.base import Positive, Section


class Select(Section):
    """Which checkpoint wins. Changing it trains nothing."""

    metric: str = Field("accuracy", description="a metric that the task logs on the development set")
    mode: Literal["max", "min"] | None = Field(
        None,
        description="whether more or less of it is better; none: as the metric says; needed only for one of your own that does not say",
    )


class Evaluate(Section):
    """How the winner is evaluated. Changing it evaluates and compares only."""

    batch_size: Positive = Field(64, description="examples at a time, over all processes together; the results do not depend on it")
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = Field(0.95, description="of the interval around the accuracy")
    bins: Positive = Field(10, description="of the reliability plot")
