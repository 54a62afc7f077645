"""Validates the settings of a run as far as they go: what is wrong is told and left out, so that it hides nothing else."""

import copy
import re
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from snaketrain.config.errors import fields_at, near, problem
from snaketrain.config.schema import Section, Settings
from snaketrain.config.schema.base import CONTRADICTIONS_LATER
from snaketrain.runtime.json_types import JsonObject

ROUNDS = 20  # what is left out may bring up something else
STAND_IN = {"train": {"use": "of_nothing.Known"}, "label": None, "max_length": None}  # for a `data` section of which too little is known


class Validated(NamedTuple):
    settings: Settings | None  # with what is wrong left out
    problems: dict[str, str]  # each with its kind
    wrong: set[str]  # the places; what is found there, or below, only follows


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
            wrong |= {path} if path.count(".") else set()  # of a whole section the rest may be right
    return Validated(settings, problems, wrong)


def follows(path: str, wrong: set[str]) -> bool:
    """Whether a place is one that is known to be wrong, or is below one."""
    return any(path == place or path.startswith(f"{place}.") for place in wrong)


def mentions(text: str, wrong: set[str]) -> bool:
    """Whether a message is about settings of which one is known to be wrong."""
    words = {word for path in wrong for word in _words(path)}
    return not words.isdisjoint(re.findall(r"\w+", text))


def contradictions(section: Section, path: str = "") -> Iterator[tuple[str, str]]:
    """Of a section and of all that is in it, each with its place."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else [(None, value)]
        for key, each in inner:
            if isinstance(each, Section):
                yield from contradictions(each, ".".join(map(str, filter(lambda part: part not in ("", None), (path, name, key)))))
    yield from ((path, text) for text in section.contradictions())


def _leave_out(raw: JsonObject, item: ErrorDetails) -> set[str]:
    """Take away the nearest that there is to what is wrong, so that its default counts; where nothing could be told of it any more."""
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
    """What a contradiction would call a setting that is wrong: its name, or the one that was meant."""
    *parents, name = path.split(".")
    return {name} | set(near(name, fields_at(tuple(parents)))[:1])
