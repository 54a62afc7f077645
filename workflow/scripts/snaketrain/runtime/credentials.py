"""Keeps passwords and tokens out of everything that is written, shown or sent: they are replaced by `***`.

`hidden` does so in a text, `hidden_in` in what becomes JSON, `Concealing` in the records of a logger. What is a secret is known
from the environment (environment_secrets.py) and from the form of a text (secret_forms.py).
"""

import functools
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable

from snaketrain.runtime.environment_secrets import Pattern, secrets_in
from snaketrain.runtime.secret_forms import HIDDEN, is_secret_name, without_secrets
from snaketrain.runtime.strict_json import Json

SHORTEST_TEXT = 4  # of a secret


def hidden(text: str) -> str:
    """The text without secrets: those of the environment, and those recognised by their form."""
    if len(text) < SHORTEST_TEXT:
        return text
    return without_secrets(_of_environment(frozenset(os.environ.items())).hidden(text))


def hidden_in(content: Json, name: str = "") -> Json:
    """The same for every text in a JSON value; any text or number under a name such as `password` is hidden."""
    return _replaced(content, name, hidden)


class Concealing(logging.Filter):
    """A filter for loggers that hides secrets in all fields of a record."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in list(vars(record).items()):
            if isinstance(value, tuple):
                setattr(record, name, tuple(hidden_in(value)))
            elif isinstance(value, str | list | dict) and (clean := hidden_in(value)) != value:
                setattr(record, name, clean)
        return True


class ConcealingFormatter(logging.Formatter):
    """Hides secrets in the formatted line, including its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        return hidden(super().format(record))


def hide_in_tracebacks() -> None:
    """Of errors that nothing catches, in a process whose output goes to a file as it is."""
    sys.excepthook = lambda *error: print(hidden("".join(traceback.format_exception(*error))), file=sys.stderr)
    threading.excepthook = lambda error: sys.excepthook(error.exc_type, error.exc_value or error.exc_type(), error.exc_traceback)


def _replaced(content: Json, name: str, replace: Callable[[str], str]) -> Json:
    if isinstance(content, dict):
        return {key: _replaced(value, str(key), replace) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_replaced(value, name, replace) for value in content]
    if isinstance(content, str):
        return HIDDEN if is_secret_name(name, content) else replace(content)
    is_number = isinstance(content, int | float) and not isinstance(content, bool)
    return HIDDEN if is_number and is_secret_name(name, str(content)) else content


@functools.lru_cache(maxsize=8)
def _of_environment(environment: frozenset[tuple[str, str]]) -> Pattern:
    return Pattern(secrets_in(dict(environment)))
