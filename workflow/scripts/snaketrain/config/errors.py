"""Error messages for a wrong configuration: where, what, and what to do."""

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from typing import get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from snaketrain.config.other_trainers import PRECISIONS, from_elsewhere
from snaketrain.config.schema import Section, Settings
from snaketrain.config.schema.base import LONGEST_NAME, NAME
from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.strict_json import Json

MOST_NAMES = 8  # that a message lists
LONGEST = 900  # characters of a problem
TYPE = re.compile(r"(?:list|dict|literal|nullable)\[|constrained-|function-")  # of a value, as pydantic names it in a place
SCALARS = (("int",), ("float",), ("str",), ("bool",))
OF_SCALARS = ("int_", "float_", "string_type", "bool_")
PLAINER = {
    "a valid dictionary": "names with their values",
    "List should have": "a list of",
    "Dictionary should have": "names with values below them,",
    "String should have": "a text of",
    " after validation": "",
    "greater than": "a number greater than",
    "less than": "a number less than",
}


class ConfigurationError(Exception):
    """All problems of a configuration, each with its path, what is wrong and what to do."""

    def __init__(self, problems: list[str]):
        self.problems = list(dict.fromkeys(map(one_line, problems)))
        shown = [hidden(problem) for problem in self.problems]
        several = "\n  - ".join((f"The configuration has {len(shown)} problems; nothing was started.", *shown))
        super().__init__(several if len(shown) > 1 else f"{shown[0]} Nothing was started.")


def one_line(text: str) -> str:
    """Without line breaks and control characters, and of readable length: values come from the user."""
    text = "".join(letter if letter.isprintable() else letter.encode("unicode_escape", "backslashreplace").decode() for letter in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST * 2 // 3]} ... {text[-LONGEST // 3 :]}"


def problems_of(section: type[Section], value: Json, where: str, what: str = "setting") -> list[str]:
    """All errors in a section that is not one of a run's, each with its place."""
    try:
        section.model_validate({} if value is None else value)
    except ValidationError as error:
        return [problem(item, section, where, what) for item in errors_in(error)]
    return []


def errors_in(error: ValidationError) -> list[ErrorDetails]:
    """Pydantic's errors, by their places in the configuration.

    Where a value may be of several types, pydantic has an error for each of them, with the type as a part of the place. Those inside the
    value are kept, which is of that type then, or else the first.
    """
    found: dict[tuple[int | str, ...], ErrorDetails] = {}
    for item in error.errors(include_url=False):
        is_scalar = item["loc"][-1:] in SCALARS and item["type"].startswith(OF_SCALARS)
        place = item["loc"][:-1] if is_scalar else item["loc"]
        place = tuple(part for part in place if not (isinstance(part, str) and TYPE.match(part)))
        if place not in found or (
            is_scalar and found[place]["type"].startswith(OF_SCALARS)
        ):  # of `int | float`, the wider type is the last
            found[place] = {**item, "loc": place}
    above = {place[:length] for place in found for length in range(len(place))}
    return [item for place, item in found.items() if place not in above]


def problem(item: ErrorDetails, section: type[Section] = Settings, where: str = "", what: str = "setting") -> str:
    """`where`: the place of the section."""
    path = ".".join(filter(None, (where, dotted(item["loc"]))))
    given = item["input"]
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        return f"{path}: {no_such(what, item['loc'][-1], fields_at(item['loc'][:-1], section))}"
    if kind == "missing":
        return f"{path}: is missing, and has no default. See config/README.md for what it means."
    if kind == "literal_error":
        known = re.findall(r"'(.*?)'", context["expected"])
        ours = f". Here it is {PRECISIONS[str(given)]}." if str(given) in PRECISIONS and path.endswith("precision") else ""
        return f"{path}: {shown(given)} is not one of {context['expected']}{ours or nearest(given, known)}"
    if kind == "model_type" and path == "data" and isinstance(given, str):
        return f"data: there is no {given!r} among the `datasets`. Name one of them, or write the section here."
    if kind in ("model_type", "dict_type"):
        known = fields_at(item["loc"], section)
        below = f"its settings ({', '.join(known)})" if known else "names with their values"
        return f"{path}: expects {below} below it, not {shown(given)}."
    if kind == "string_pattern_mismatch":
        return f"{path}: {bad_name(str(given))}"
    return f"{path}: {expectation(item)}."


def expectation(item: ErrorDetails) -> str:
    """Pydantic's message about a value, in plainer words."""
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    expected = item["msg"].removeprefix("Input should be ")
    for theirs, ours in PLAINER.items():
        expected = expected.replace(theirs, ours)
    return f"expects {expected}, not {shown(item['input'])}"


def fields_at(location: Sequence[int | str], model: type[Section] = Settings) -> list[str]:
    """The names of the settings at a place of the configuration, or of another section."""
    named = False  # whether the next part is a name that the user gave
    for part in location:
        if named or isinstance(part, int) or part.isdecimal():
            named = False
            continue  # in a list, or in a mapping
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        found = next((c for c in candidates if isinstance(c, type) and issubclass(c, Section)), None)
        if found is None:
            return []
        model, named = found, get_origin(annotation) is dict
    return [] if named else list(model.model_fields)


def placed_in(place: str, problem: str) -> str:
    """A problem of files that have settings of their own: it begins with the place, or with the setting there instead of that in `data`."""
    setting, _, rest = problem.partition(": ")
    name = setting.removeprefix("data.")
    return f"{place}.{name}: {rest}" if name != setting and name in fields_at(place.split(".")) else f"{place}: {problem}"


def dotted(place: Sequence[object]) -> str:
    return ".".join(shown(str(part))[1:-1] for part in place)


def shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def no_such(what: str, key: object, known: Sequence[str]) -> str:
    """That a name is unknown, what it is called here, or which names are the nearest."""
    if ours := from_elsewhere(key):
        return f"no such {what}.{ours}"
    some = f" Known here: {listed(key, known)}." if known else ""
    return f"no such {what}{nearest(key, known)}{some}"


def listed(key: object, known: Sequence[str]) -> str:
    """All names if they are few, otherwise the nearest."""
    if len(known) <= MOST_NAMES:
        return ", ".join(known)
    likeness = {name: difflib.SequenceMatcher(None, str(key)[:100].lower(), name.lower()).ratio() for name in known}
    chosen = sorted(known, key=lambda name: -likeness[name])[:MOST_NAMES]
    return f"{', '.join(chosen)} and {len(known) - MOST_NAMES} more, see config/README.md"


def nearest(key: object, known: Iterable[object]) -> str:
    found = near(key, known)
    return f". Did you mean '{found[0]}'?" if found else "."


def near(key: object, known: Iterable[object]) -> list[str]:
    """The nearest known name, if any is near."""
    given, names = str(key), sorted(map(str, known))
    words = set(given.lower().split("_"))
    return (
        [name for name in names if name.lower() == given.lower()]  # `Batch_Size`
        or difflib.get_close_matches(given[:100], names, n=1, cutoff=0.85)
        or [name for name in names if len(words) > 1 and words <= set(name.split("_"))]  # `num_layers` for `num_hidden_layers`
        or difflib.get_close_matches(given[:100], names, n=1)
    )


def bad_name(name: str) -> str | None:
    if len(name) <= LONGEST_NAME and re.fullmatch(NAME, name):
        return None
    return f"{name!r} cannot be a name: it is used as a folder name, so use only letters, digits and . _ - = +, beginning with a letter or digit."
