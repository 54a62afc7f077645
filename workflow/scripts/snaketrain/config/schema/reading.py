"""How the rows of files beside the training data are read."""

from typing import Literal

from pydantic import Field, field_validator

from snaketrain.config.schema.base import Section
from snaketrain.config.schema.data import Data
from snaketrain.runtime.json_types import Json


class ReadFiles(Section):
    """How rows are read, where that differs from the training data."""

    text: list[str] | None = Field(None, description="the columns of the text, as many as in `data.text`; null: the same", max_length=2)
    format: Literal["auto", "csv", "tsv", "jsonl", "parquet", "text"] | None = Field(None, description="null: as `data.format`")
    encoding: str | None = Field(None, description="null: as `data.encoding`")
    columns: list[str] | None = Field(
        None, description="column names, for CSV and TSV files without a header line; null: as `data.columns`; []: there is a header line"
    )

    @field_validator("text", mode="before")
    @classmethod
    def _one_column(cls, value: Json) -> Json:
        return [value] if isinstance(value, str) else value

    @property
    def differences(self) -> dict[str, object]:
        """The settings of `data` that these replace."""
        given: dict[str, object] = {name: getattr(self, name) for name in ("text", "format", "encoding") if getattr(self, name) is not None}
        return given | ({} if self.columns is None else {"columns": self.columns or None})


def placed_in(place: str, section: type[ReadFiles], problem: str) -> str:
    """A problem of files that have settings of their own: it begins with the place, or with the setting there instead of that in `data`."""
    setting, _, rest = problem.partition(": ")
    name = setting.removeprefix("data.")
    return f"{place}.{name}: {rest}" if name != setting and name in section.model_fields else f"{place}: {problem}"


def other_number_of_texts(place: str, given: ReadFiles, data: Data) -> list[str]:
    if given.text is None or len(given.text) == len(data.text):
        return []
    return [
        f"{place} names {len(given.text)} columns, but data.text names {len(data.text)} ({', '.join(data.text)}): name as many, in the same order"
    ]
