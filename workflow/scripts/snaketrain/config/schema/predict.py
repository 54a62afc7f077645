"""The section `predict`."""

import re
from collections.abc import Iterator, Mapping

from pydantic import Field

from snaketrain.config.schema.data import Data
from snaketrain.config.schema.reading import ReadFiles, other_number_of_texts
from snaketrain.config.schema.sources import Source

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # of files, and part of a setting's dotted key


class ReadInputs(ReadFiles):
    """How the rows of unlabelled files are read, where that differs from the training data."""

    id: str | None = Field(None, description="a column that is copied to the predictions as `id`; null: the number of the row, from 0")

    def reading(self, data: Data) -> Data:
        """The settings of the training data with these instead; all rows are read, and no label."""
        return data.model_copy(update=self.differences | {"label": None, "where": {}})


class Inputs(Source, ReadInputs):
    """Files whose rows are to be predicted: where they are, as in a [Source](#source), and how they are read."""


def prediction_problems(predict: Mapping[str, Inputs], data: Data) -> Iterator[str]:
    if predict and data.by_class:
        yield "predict is for files of text, but the data is a dataset class: remove `predict`"
    for name in ("target", "messages"):
        if predict and getattr(data, name) is not None:
            yield f"predict generates no text yet, which a model of data.{name} would have to: remove `predict`, and use the model with transformers"
    for name, inputs in predict.items():
        yield from bad_file_name("predict", name)
        yield from other_number_of_texts(f"predict.{name}", inputs, data)


def bad_file_name(section: str, name: str) -> Iterator[str]:
    if not NAME.fullmatch(name):
        yield f"{section}: {name!r} cannot be a name: files are named after it, so use only letters, digits, - and _"
