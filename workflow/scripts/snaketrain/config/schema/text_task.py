"""The arguments of `tasks/text_classification.py` as a class: how the loss weighs examples. Nothing here imports torch."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from snaketrain.config.schema.base import LARGEST, Fraction, Section

Weight = Annotated[float, Field(ge=0, le=LARGEST)]


class TextClassificationSettings(Section):
    """The loss that is trained. Evaluations report the plain one, so that runs with different losses can be compared."""

    class_weights: Literal["balanced"] | dict[str, Weight] | None = Field(
        None,
        description="the weight of each class by name, 1 if it is left out; `balanced`: the rarer a class is in the training data, the larger its weight. With `label_kind: classes`, the weight of having the class",
    )
    label_smoothing: Fraction = Field(0.0, description="the share of the right answer's probability that is spread over all answers")
    focal_gamma: Annotated[float, Field(ge=0, le=100)] = Field(
        0.0, description="the focal loss: an example's loss times (1 - probability of the right answer) to this power"
    )

    def contradictions(self) -> Iterator[str]:
        if self.label_smoothing and self.focal_gamma:
            yield "label_smoothing and focal_gamma: the focal loss is of the right answer alone; keep one of the two"
