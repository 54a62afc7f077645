"""What a configuration may consist of: text, numbers, booleans, lists and mappings, of limited depth and size."""

from collections.abc import Iterator

from snaketrain.config.errors import shown
from snaketrain.runtime.strict_json import Json

DEEPEST = 60  # levels of nesting
MOST_VALUES = 1_000_000  # a small file with aliases of aliases can expand without limit
MOST_BITS = 1000  # of a whole number
PLAIN = (str, int, float, bool, type(None))
Place = tuple[object, ...]


class TooLarge(Exception):
    """The configuration is too large or too deep to be checked; the message says which."""


def not_plain(config: Json) -> Iterator[tuple[Place, str]]:
    """Places whose values cannot be settings, and why."""
    waiting: list[tuple[Place, Json]] = [((), config)]
    for _ in range(MOST_VALUES):
        if not waiting:
            return
        place, value = waiting.pop()
        if len(place) > DEEPEST:
            raise TooLarge(f"{dotted(place[:3])}: is nested deeper than {DEEPEST} levels. Write it flatter.")
        if isinstance(value, dict):
            strange = {key for key in value if not isinstance(key, PLAIN) or _unwritable(key)}
            yield from (((*place, key), f"{shown(key)} is not the name of a setting. Correct it") for key in strange)
            waiting += [((*place, key), inner) for key, inner in reversed(value.items()) if key not in strange]
        elif isinstance(value, list):
            waiting += [((*place, number), inner) for number, inner in reversed(list(enumerate(value)))]
        elif why := _unwritable(value):
            yield place, f"{why}. Remove it"
        elif not isinstance(value, PLAIN):
            yield place, f"expects a plain value, not {shown(value)}, which YAML reads as a {type(value).__name__}. Put it in quotes"
    raise TooLarge(f"The file has more than {MOST_VALUES:,} values, perhaps by aliases of aliases. Write out what is meant.")


def dotted(place: Place) -> str:
    return ".".join(shown(str(part))[1:-1] for part in place)


def without(value: Json, places: set[Place]) -> Json:
    """A copy without the values at these places."""
    below = {place[0]: {other[1:] for other in places if other[0] == place[0]} for place in places}
    if isinstance(value, dict):
        return {key: without(inner, below[key]) if key in below else inner for key, inner in value.items() if () not in below.get(key, ())}
    if isinstance(value, list):
        return [without(inner, below[n]) if n in below else inner for n, inner in enumerate(value) if () not in below.get(n, ())]
    return value


def _unwritable(value: object) -> str | None:
    """Why a value cannot be passed to a command or written to a file, if it cannot."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return "is a number of more than 300 digits"
    if not isinstance(value, str):
        return None
    if "\0" in value:
        return f"contains a NUL byte: {shown(value)}"
    return f"contains half of a surrogate pair: {shown(value)}" if any("\ud800" <= letter <= "\udfff" for letter in value) else None
