"""The section `predict`: what the selected model predicts, how its rows are read, and how text is generated from them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from snaketrain.config.schema.base import OneOrMore, is_null
from snaketrain.config.schema.data import Data
from snaketrain.config.schema.evaluation import Generate, ReadFiles, bad_file_name, other_number_of_texts
from snaketrain.config.schema.model import Source

if TYPE_CHECKING:
    from snaketrain.config.schema import Settings


class ReadInputs(ReadFiles):
    """How the rows of unlabelled files are read, where that differs from the training data."""

    text: Annotated[list[str] | None, OneOrMore] = Field(
        None,
        description="the columns of the text, as many as in `data.text`, or the column of the chats. If the model was trained on prompts with answers: the "
        "column of the prompts, to generate answers, or both columns, to get the loss of given answers. null: as in `data`, without the answers",
        max_length=2,
    )
    id: str | None = Field(None, description="a column that is copied to the predictions as `id`; null: the number of the row, from 0")
    generate: Generate | None = Field(
        None,
        exclude_if=is_null,
        description="how text is generated; null: as in `evaluate.generate`, else `train.task.arguments.generate`, else with the defaults. A language "
        "model trained on running text continues each text only if this is given, and otherwise reports its loss",
    )

    def asks_for_text(self, data: Data) -> bool:
        """Whether text is to be generated, rather than given text scored. Only some tasks can generate."""
        prompts = data.label is None and data.pair and len(self.text or ()) != 2
        return bool(data.target or data.messages or prompts or self.generate)

    def reading(self, data: Data, generates: bool) -> Data:
        """The settings of the training data with these in their place; all rows are read, and no labels.

        `generates`: text is generated, so only the prompts are read.
        """
        texts = self.text or ([data.messages] if data.messages else data.text)
        given = {"messages": texts[0] if data.messages else None, "text": texts[:1] if generates else texts}
        return data.model_copy(update=self.differences | given | {"label": None, "target": None, "where": {}, "slices": []})


class Inputs(Source, ReadInputs):
    """Files whose rows are to be predicted: where they are, as in a [Source](#source), and how they are read."""


SECTIONS: dict[str, tuple[Any, Any]] = {
    "predict": (
        dict[str, Inputs],
        Field(
            {},
            description="Unlabelled data that the selected model predicts, by name: `predict: {new: {path: new.jsonl}}` writes "
            "`results/runs/<run>/predictions/new.parquet` and `new.csv`. Changing it reruns only the predictions.",
        ),
    )
}


def inputs_of(run: "Settings") -> dict[str, Inputs]:
    return run.predict  # type: ignore[attr-defined]  # a section of SECTIONS


def contradictions(run: "Settings") -> Iterator[str]:
    inputs = inputs_of(run)
    if inputs and run.data.by_class:
        yield "predict is for files of text, but the data is a dataset class: remove `predict`"
    for name, each in inputs.items():
        yield from bad_file_name("predict", name)
        yield from text_problems(f"predict.{name}.text", each, run.data)


def text_problems(place: str, inputs: ReadInputs, data: Data) -> list[str]:
    """Columns that do not match those of the training data; prompts alone match prompts with answers."""
    if data.messages and len(inputs.text or ()) > 1:
        return [f"{place} names {len(inputs.text or ())} columns, but chats are in one: name the column of the messages"]
    prompts = data.label is None and data.pair and len(inputs.text or ()) == 1
    return [] if prompts else other_number_of_texts(place, inputs, data)
