"""What a user reads when the configuration is wrong: where, what, and what to do."""

import difflib
import functools
import json
import re
from typing import Any

from pydantic import TypeAdapter, ValidationError

from snaketrain.credentials import hidden
from snaketrain.settings import Name, Section, Settings

PLAINER = {
    "List should have": "a list of",
    "String should have": "a text of",
    " after validation": "",
    "greater than": "a number greater than",
    "less than": "a number less than",
}


class BadConfiguration(Exception):
    """All problems of a configuration, each with its path, what is wrong and what to do."""

    def __init__(self, problems: list[str]):
        self.problems = list(dict.fromkeys(problems))
        several = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__(f"The configuration has {several}; nothing was started.\n" + "\n".join(f"  - {hidden(p)}" for p in self.problems))


def problem(item: dict) -> str:
    path = ".".join(map(str, item["loc"]))
    given = item["input"]
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        known = fields_at(item["loc"][:-1])
        return f"{path}: no such setting{nearest(item['loc'][-1], known)} Known here: {', '.join(known)}."
    if kind == "missing":
        return f"{path}: is missing, and has no default. See config/README.md for what it means."
    if kind == "value_error":
        return f"{path}: {context['error']}." if path else f"{context['error']}."
    if kind == "literal_error":
        known = re.findall(r"'(.*?)'", context["expected"])
        return f"{path}: {shown(given)} is not one of {context['expected']}{nearest(given, known)}"
    if kind == "model_type" and path == "data" and isinstance(given, str):
        return f"data: there is no {given!r} among the `datasets`. Name one of them, or write the section here."
    if kind in ("model_type", "dict_type"):
        known = fields_at(item["loc"])
        below = f"its settings ({', '.join(known)})" if known else "names with their values"
        return f"{path}: expects {below} below it, not {shown(given)}."
    if kind == "string_pattern_mismatch":
        return f"{path}: {bad_name(str(given))}"
    expected = item["msg"].removeprefix("Input should be ")
    for theirs, ours in PLAINER.items():
        expected = expected.replace(theirs, ours)
    return f"{path}: expects {expected}, not {shown(given)}."


def fields_at(location: tuple) -> list[str]:
    """The settings known at a place of the configuration."""
    model: Any = Settings
    for part in location:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, Section)), None)
        if model is None:
            return []
    return list(model.model_fields)


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(key: Any, known: Any) -> str:
    near = difflib.get_close_matches(str(key), list(known), n=1)
    return f". Did you mean '{near[0]}'?" if near else "."


@functools.cache
def _names() -> TypeAdapter:
    return TypeAdapter(Name)  # making it takes longer than all names of a large sweep


def bad_name(name: str) -> str | None:
    try:
        _names().validate_python(name)
    except ValidationError:
        return f"{name!r} cannot be a name: it names a folder, so use letters, digits and . _ - = + only, beginning with a letter or digit."
    return None
