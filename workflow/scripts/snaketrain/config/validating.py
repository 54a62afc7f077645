"""Validates the settings of a run: invalid ones are reported and left out, so that they do not hide other errors."""

import copy
import re
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from snaketrain.config.errors import fields_at, near, problem
from snaketrain.config.schema import Section, Settings
from snaketrain.config.schema.base import CONTRADICTIONS_LATER
from snaketrain.runtime.strict_json import JsonObject

ROUNDS = 20  # leaving a setting out may cause another error
STAND_IN = {
    "train": {"use": "of_nothing.Known"},
    "label": None,
    "max_length": None,
}  # stands in for a `data` section that is too incomplete to validate


class Validated(NamedTuple):
    settings: Settings | None  # without the invalid ones
    problems: dict[str, str]  # each with pydantic's type of error
    wrong: set[str]  # their paths; errors at or below these are only consequences


def validated(raw: JsonObject) -> Validated:
    problems: dict[str, str] = {}
    wrong: set[str] = set()
    for _ in range(ROUNDS):
        try:
            settings = Settings.model_validate(raw, context=CONTRADICTIONS_LATER)
            break
        except ValidationError as error:
            if not problems:
                raw = copy.deepcopy(raw)
            found = error.errors(include_url=False)
            for item in found:
                path = ".".join(map(str, item["loc"]))
                if not follows(path, wrong):
                    problems[problem(item)] = item["type"]
            for item in found:
                wrong |= {".".join(map(str, item["loc"])), *_leave_out(raw, item)}
    else:
        return Validated(None, problems, wrong)
    for path, text in contradictions(settings):
        if not follows(path, wrong) and not mentions(text, wrong):
            problems[f"{path}: {text}." if path else f"{text}."] = "value_error"
            wrong |= {path} if path.count(".") else set()  # the rest of the section may be right
    return Validated(settings, problems, wrong)


def follows(path: str, wrong: set[str]) -> bool:
    """Whether a place is known to be wrong, or is below one that is."""
    return any(path == place or path.startswith(f"{place}.") for place in wrong)


def mentions(text: str, wrong: set[str]) -> bool:
    """Whether a message mentions a setting that is known to be wrong."""
    words = {word for path in wrong for word in _words(path)}
    return not words.isdisjoint(re.findall(r"\w+", text))


def contradictions(section: Section, path: str = "") -> Iterator[tuple[str, str]]:
    """The contradictions of a section and of all sections in it, each with its place."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else [(None, value)]
        for key, each in inner:
            if isinstance(each, Section):
                yield from contradictions(each, ".".join(map(str, filter(lambda part: part not in ("", None), (path, name, key)))))
    yield from ((path, text) for text in section.contradictions())


def _leave_out(raw: JsonObject, item: ErrorDetails) -> set[str]:
    """Remove an invalid value, or the nearest section that exists, so that the default applies; returns the places that this affects."""
    place, last = raw, None
    for key in item["loc"]:
        if not isinstance(place, dict) or key not in place:
            break
        last = (place, key)
        place = place[key]
    if last is None or (last[0] is raw and last[1] == "data"):
        raw["data"] = copy.deepcopy(STAND_IN)
        return {"data"}
    del last[0][last[1]]
    return set()


def _words(path: str) -> set[str]:
    """The names under which a message may mention a wrong setting: its own, and the one that was probably meant."""
    *parents, name = path.split(".")
    return {name} | set(near(name, fields_at(tuple(parents)))[:1])
