"""The sections `select` and `evaluate`."""

from typing import Annotated, Literal

from pydantic import Field

from snaketrain.config.schema.base import Positive, Section, is_empty, is_null, is_one
from snaketrain.config.schema.generation import Generate
from snaketrain.config.schema.metrics import Metrics
from snaketrain.config.schema.train import Train


class Select(Section):
    """Which checkpoint is selected. Changing it trains nothing, unless the training has not logged `metric`."""

    metric: str = Field(
        "accuracy",
        description="a metric that the task logs on the development set, or a short name as in `train.metrics`, which is then logged as well",
    )
    mode: Literal["max", "min"] | None = Field(
        None,
        description="whether higher or lower is better; null: as the metric declares; needed only for a metric of your own that does not",
    )
    average: Positive = Field(
        1,
        exclude_if=is_one,
        description="average the weights of this many of the best checkpoints; `compute.keep_checkpoints` must keep at least as many",
    )


class Evaluate(Section):
    """How the selected checkpoint is evaluated. Changing it reruns only evaluation and comparison."""

    batch_size: Positive | None = Field(
        None,
        description="examples at a time, over all processes together; null: on each process as many as in the evaluations during training, the "
        "examples of two microbatches. The results do not depend on it",
    )
    metrics: Metrics = Field(
        {},
        description="metrics of the evaluation alone, besides those of the task and of `train.metrics`",
        exclude_if=is_empty,
    )
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = Field(0.95, description="confidence level of the interval around the accuracy")
    generate: Generate | None = Field(
        None,
        exclude_if=is_null,
        description="how answers are generated to be compared with `data.target`, or with the answers to a language model's prompts; null: as in the "
        "evaluations during training (`train.task.arguments.generate`), or not at all if that is not given either",
    )
    bins: Positive = Field(10, description="number of bins of the reliability plot")

    def applied_to(self, train: Train) -> Train:
        """The settings of a training, with the generation of the evaluation in place of its own."""
        return self.generate.applied_to(train) if self.generate else train
