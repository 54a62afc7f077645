"""The options of a script as words of its command line."""

from collections.abc import Mapping
from typing import TypeAlias

Option: TypeAlias = str | int | float | bool | list[str] | None


def option_words(options: Mapping[str, Option]) -> list[str]:
    """`--name=value` as one word, since a value may begin with a dash; `--name one two` for a list; `--name` for a switch that is on."""
    words = []
    for name, value in options.items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            words.append(f"--{name}={value}")
        elif value is True:
            words.append(f"--{name}")
        elif value:  # otherwise it is off, empty or not given
            words += [f"--{name}", *value]
    return words
