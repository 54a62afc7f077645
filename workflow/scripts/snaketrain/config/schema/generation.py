"""How text is generated where a model's answers are compared with references."""

from typing import Annotated

from pydantic import Field

from snaketrain.config.schema.base import LARGEST, NotNegative, Positive, Section
from snaketrain.config.schema.train import Train

Penalty = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]

# the metrics of generated texts, and which direction is better
TEXT_METRICS = {"exact_match": "max", "token_f1": "max", "rouge1": "max", "rouge2": "max", "rougeL": "max", "bleu": "max"}


class Generate(Section):
    """Greedy decoding or beam search: nothing is sampled, so that results can be repeated. null: as in the model's own configuration."""

    max_new_tokens: Positive = Field(128, description="longest answer in tokens; one that has not ended by then is cut off")
    num_beams: Positive = Field(1, description="beams of the search; 1 is greedy decoding")
    min_new_tokens: NotNegative | None = Field(None, description="shortest answer in tokens")
    length_penalty: Penalty | None = Field(None, description="of beam search: above 0 longer answers are preferred, below 0 shorter ones")
    repetition_penalty: Annotated[float, Field(gt=0, le=LARGEST)] | None = Field(
        None, description="above 1: tokens that have already occurred become less likely"
    )
    no_repeat_ngram_size: NotNegative | None = Field(None, description="no sequence of this many tokens occurs twice in an answer")

    def applied_to(self, train: Train) -> Train:
        """The settings of a training, with this generation in place of its own."""
        arguments = train.task.arguments | {"generate": self.model_dump()}
        return train.model_copy(update={"task": train.task.model_copy(update={"arguments": arguments})})


def generation_of(train: Train) -> Generate | None:
    """How the evaluations of a training generate answers; None if they do not."""
    given = train.task.arguments.get("generate")
    return None if given is None else Generate.model_validate(given)
