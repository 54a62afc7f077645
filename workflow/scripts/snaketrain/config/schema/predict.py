"""The section `predict`."""

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import Field, field_validator

from snaketrain.config.schema.base import Section
from snaketrain.config.schema.data import Data
from snaketrain.config.schema.sources import Source
from snaketrain.runtime.json_types import Json

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # of files, and part of a setting's dotted key


class ReadInputs(Section):
    """How the rows of unlabelled files are read, where that differs from the training data."""

    text: list[str] | None = Field(None, description="the columns of the text, as many as in `data.text`; null: the same", max_length=2)
    id: str | None = Field(None, description="a column that is copied to the predictions as `id`; null: the number of the row, from 0")
    format: Literal["auto", "csv", "tsv", "jsonl", "parquet", "text"] | None = Field(None, description="null: as `data.format`")
    encoding: str | None = Field(None, description="null: as `data.encoding`")
    columns: list[str] | None = Field(
        None, description="column names, for CSV and TSV files without a header line; null: as `data.columns`; []: there is a header line"
    )

    @field_validator("text", mode="before")
    @classmethod
    def _one_column(cls, value: Json) -> Json:
        return [value] if isinstance(value, str) else value

    def reading(self, data: Data) -> Data:
        """The settings of the training data with these instead; all rows are read, and no label."""
        given = {name: getattr(self, name) for name in ("text", "format", "encoding") if getattr(self, name) is not None}
        given |= {} if self.columns is None else {"columns": self.columns or None}
        return data.model_copy(update=given | {"label": None, "where": {}})


class Inputs(Source, ReadInputs):
    """Files whose rows are to be predicted: where they are, as in a [Source](#source), and how they are read."""

    @property
    def source(self) -> Source:
        return Source.model_validate({name: getattr(self, name) for name in Source.model_fields})


def prediction_problems(predict: Mapping[str, Inputs], data: Data) -> Iterator[str]:
    if predict and data.by_class:
        yield "predict is for files of text, but the data is a dataset class: remove `predict`"
    for name in ("target", "messages"):
        if predict and getattr(data, name) is not None:
            yield f"predict generates no text yet, which a model of data.{name} would have to: remove `predict`, and use the model with transformers"
    for name, inputs in predict.items():
        if not NAME.fullmatch(name):
            yield f"predict: {name!r} cannot be a name: files are named after it, so use only letters, digits, - and _"
        if inputs.text is not None and len(inputs.text) != len(data.text):
            yield (
                f"predict.{name}.text names {len(inputs.text)} columns, but data.text {len(data.text)} ({', '.join(data.text)}): "
                "name as many, in the same order"
            )
