"""The base class of all sections of the configuration, and types that they share."""

import os
import re
from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from snaketrain.runtime.strict_json import Json, JsonObject

LARGEST = 10**9  # whole numbers beyond it are more likely typos, and arithmetic with them may overflow
Positive = Annotated[int, Field(gt=0, le=LARGEST)]
NotNegative = Annotated[int, Field(ge=0, le=LARGEST)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # the range that numpy's generators accept
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=+-]*$", max_length=100)]


def with_numbers(value: Json) -> Json:
    """YAML 1.1 reads `1e-8` as text, and pydantic does not convert it where any type is allowed."""
    if isinstance(value, dict):
        return {key: with_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_numbers(inner) for inner in value]
    return float(value) if isinstance(value, str) and re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+", value) else value


def from_here(path: str) -> str:
    """The one spelling of a path: `./a`, `b/../a` and an absolute one below the working directory are `a`."""
    if path.startswith("~") or not path:
        return path
    path, here = os.path.normpath(path), os.getcwd()
    return os.path.relpath(path, here) if path.startswith(here + os.sep) else path


def with_own_files_from_here(value: Json) -> Json:
    """The same for each `path/to/file.py:Name` in it."""
    if isinstance(value, dict):
        return {key: with_own_files_from_here(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_own_files_from_here(inner) for inner in value]
    named = re.fullmatch(r"([^:\n]+\.py)(:[^\W\d]\w*)", value) if isinstance(value, str) else None
    return from_here(named[1]) + named[2] if named else value


Arguments = Annotated[JsonObject, BeforeValidator(with_numbers)]


CONTRADICTIONS_LATER = "contradictions later"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_not_one(cls, value: Json, info: ValidationInfo) -> Json:
        # pydantic would read `epochs: yes` as 1
        if isinstance(value, bool) and "bool" not in str(cls.model_fields[str(info.field_name)].annotation):
            raise ValueError(
                f"{str(value).lower()} is not what this setting takes: correct it, and put a word that YAML reads as true or false, such as yes or no, into quotes"
            )
        return with_own_files_from_here(value)  # spelt otherwise, it is the same, and nothing runs again

    def contradictions(self) -> Iterator[str]:
        """Settings that contradict each other, each with what to do about it."""
        return iter(())

    @model_validator(mode="after")
    def _goes_together(self, info: ValidationInfo) -> Self:
        # the workflow checks for contradictions separately, so that other errors do not hide them
        if info.context != CONTRADICTIONS_LATER:
            for problem in self.contradictions():
                raise ValueError(problem)
        return self


# for `exclude_if` of settings that were added later: with these defaults they change no result, and make none stale
def is_null(value: object) -> bool:
    return value is None


def is_one(value: object) -> bool:
    return value == 1


def is_empty(value: dict[str, object]) -> bool:
    return not value


class Use(Section):
    """A class or function, and the arguments it is called with."""

    use: str = Field(description="a short name, `package.module.Class`, or `path/to/file.py:Class`")
    arguments: Arguments = Field({}, description="keyword arguments for it")

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Json) -> Json:
        return {"use": value} if isinstance(value, str) else value  # `schedule: cosine`
