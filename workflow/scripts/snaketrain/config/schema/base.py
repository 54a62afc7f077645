"""The base class of all sections of the configuration, and types that they share."""

import os
import re
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, ClassVar, Self

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
OneOrMore = BeforeValidator(  # a list, or its only text alone
    lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=list[str] | str | None
)
NAME, LONGEST_NAME = "[A-Za-z0-9][A-Za-z0-9._=+-]*", 100
Name = Annotated[str, Field(pattern=f"^{NAME}$", max_length=LONGEST_NAME)]


def with_texts(value: Json, change: Callable[[str], Json]) -> Json:
    """With each text in it changed, at any depth."""
    if isinstance(value, dict):
        return {key: with_texts(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_texts(inner, change) for inner in value]
    return change(value) if isinstance(value, str) else value


def with_numbers(value: Json) -> Json:
    """YAML 1.1 reads `1e-8` as text, and pydantic does not convert it where any type is allowed."""
    return with_texts(value, lambda text: float(text) if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+", text) else text)


def from_here(path: str) -> str:
    """The one spelling of a path: `./a`, `b/../a` and an absolute one below the working directory are `a`."""
    if path.startswith("~") or not path:
        return path
    path, here = os.path.normpath(path), os.getcwd()
    return os.path.relpath(path, here) if path.startswith(here + os.sep) else path


def own_file_from_here(text: str) -> str:
    """The same for `path/to/file.py:Name`."""
    named = re.fullmatch(r"([^:\n]+\.py)(:[^\W\d]\w*)", text)
    return from_here(named[1]) + named[2] if named else text


Arguments = Annotated[JsonObject, BeforeValidator(with_numbers)]


CONTRADICTIONS_LATER = "contradictions later"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False)
    short_for: ClassVar[str | None] = None  # the setting that a text in place of the section stands for, as in `schedule: cosine`
    of_extras: ClassVar[tuple[str, ...]] = ()  # settings that extras have added, but for those of how each text is read

    @property
    def as_json(self) -> JsonObject:
        """As rules compare it, and stages receive and record it."""
        return self.model_dump(mode="json")

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, value: Json) -> Json:
        return {cls.short_for: value} if cls.short_for and isinstance(value, str) else value

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_not_one(cls, value: Json, info: ValidationInfo) -> Json:
        # pydantic would read `epochs: yes` as 1
        if isinstance(value, bool) and "bool" not in str(cls.model_fields[str(info.field_name)].annotation):
            raise ValueError(
                f"{str(value).lower()} is not what this setting takes: correct it, and put a word that YAML reads as true or false, such as yes or no, into quotes"
            )
        return with_texts(value, own_file_from_here)  # spelt otherwise, it is the same, and nothing runs again

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


def sections_in(section: Section, path: str = "", without: Collection[str] = ()) -> Iterator[tuple[str, Section]]:
    """All sections in it, each with its place, and then itself. `without`: fields that are left out."""
    for name, value in section:
        # most fields, and pydantic is slow to say that they are no sections
        if value is None or isinstance(value, (str, int, float)) or name in without:
            continue
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else [(None, value)]
        for key, each in inner:
            if isinstance(each, Section):
                yield from sections_in(each, ".".join(str(part) for part in (path, name, key) if part not in ("", None)))
    yield path, section


# for `exclude_if` of settings that were added later: with these defaults they change no result, and make none stale
def is_null(value: object) -> bool:
    return value is None


def is_one(value: object) -> bool:
    return value == 1


def is_empty(value: dict[str, object]) -> bool:
    return not value


class Use(Section):
    """A class or function, and the arguments it is called with."""

    short_for = "use"
    use: str = Field(description="a short name, `package.module.Class`, or `path/to/file.py:Class`")
    arguments: Arguments = Field({}, description="keyword arguments for it")
