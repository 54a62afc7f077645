"""The sections `select` and `evaluate`: which checkpoint is selected, and how it is measured."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from snaketrain.config.schema.base import LARGEST, NotNegative, OneOrMore, Positive, Section, is_empty, is_null, is_one
from snaketrain.config.schema.data import Data, Format
from snaketrain.config.schema.train import Metrics, Train

# --- How text is generated where a model's answers are compared with references.

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


# --- The sections `select` and `evaluate`.


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
    step: NotNegative | None = Field(
        None,
        exclude_if=is_null,
        description="select the checkpoint of this step instead of the best one; it must be among those that are kept",
    )

    def contradictions(self) -> Iterator[str]:
        if self.step is not None and self.average > 1:
            yield "`step` names one checkpoint, and `average` asks for several: keep one of the two"


class Evaluate(Section):
    """How the selected checkpoint is evaluated. Changing it reruns only evaluation and comparison."""

    batch_size: Positive | None = Field(
        None,
        description="at most so many examples at a time, over all processes together; null: on each process as in the evaluations during training, "
        "those of two microbatches. On a CPU fewer, where that takes less time. The results do not depend on it",
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


# --- How the rows of files beside the training data are read.


class ReadFiles(Section):
    """How rows are read, where that differs from the training data."""

    text: Annotated[list[str] | None, OneOrMore] = Field(
        None, description="the columns of the text, as many as in `data.text`; null: the same", max_length=2
    )
    format: Format | None = Field(None, description="null: as `data.format`")
    encoding: str | None = Field(None, description="null: as `data.encoding`")
    columns: list[str] | None = Field(
        None, description="column names, for CSV and TSV files without a header line; null: as `data.columns`; []: there is a header line"
    )

    @property
    def differences(self) -> dict[str, object]:
        """The settings of `data` that these replace."""
        given: dict[str, object] = {name: getattr(self, name) for name in ("text", "format", "encoding") if getattr(self, name) is not None}
        return given | ({} if self.columns is None else {"columns": self.columns or None})


def other_number_of_texts(place: str, given: ReadFiles, data: Data) -> list[str]:
    if given.text is None or len(given.text) == len(data.text):
        return []
    return [
        f"{place} names {len(given.text)} columns, but data.text names {len(data.text)} ({', '.join(data.text)}): name as many, in the same order"
    ]


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # of files, and part of a setting's dotted key


def bad_file_name(section: str, name: str) -> Iterator[str]:
    if not NAME.fullmatch(name):
        yield f"{section}: {name!r} cannot be a name: files are named after it, so use only letters, digits, - and _"
