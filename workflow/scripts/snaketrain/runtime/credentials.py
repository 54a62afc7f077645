"""Keeps passwords and tokens out of everything that is written, shown or sent: they are replaced by `***`.

`hidden` does so in a text, `hidden_in` in what becomes JSON, `Concealing` in a log. Settings are special, since stages need
their real values: they are recorded and passed on `conceal`ed, and the stage that uses them `reveal`s them from an
environment variable, which is never recorded.
"""

import functools
import json
import logging
import os
import re
from collections.abc import Callable
from urllib.parse import quote, quote_plus

from snaketrain.runtime.json_types import Json
from snaketrain.runtime.secret_forms import HIDDEN, SHORTEST_CHARACTERS, is_secret_name, without_secrets
from snaketrain.runtime.setting_strings import join, split

CONCEALED = "SNAKETRAIN_CONCEALED"  # a JSON object: settings that contain a password, by their concealed form
# endings of the names of environment variables
SECRET = re.compile(r"(PASSWORD|PASSWD|PASSPHRASE|PASSCODE|TOKEN|SECRETS?|(API|ACCESS|SECRET|PRIVATE)_?KEY|(^|_)(PASS|PWD|PAT))\d*$", re.I)
PERHAPS_SECRET = re.compile(r"(^|_)(CREDENTIALS?|AUTH|KEY|KEY_ID)\d*$", re.I)
WORD_OR_PATH = re.compile(r"[A-Za-z]{1,15}|[/~].*")  # SORT_KEY=accuracy
NO_SECRETS = ("PWD", "OLDPWD")


class CannotTellApart(ValueError):
    """Two settings that differ only in a password have the same concealed form."""


def hidden(text: str) -> str:
    """The text without passwords: those recognised by their form, and those in the environment or in a setting."""
    if len(text) < SHORTEST_CHARACTERS:
        return text
    known = _known(frozenset(os.environ.items()))
    return without_secrets(known.sub(HIDDEN, text) if known else text)


def hidden_in(content: Json, name: str = "") -> Json:
    """The same for every text in a JSON value; any text or number under a name such as `password` is hidden."""
    return _replaced(content, name, hidden)


def has_password(address: str) -> bool:
    found: set[str] = set()
    without_secrets(address, found)
    return bool(found)


def conceal(key: str, value: Json) -> str:
    """`key=json` of a setting without passwords. Independent of the environment, so that this cannot make results stale."""
    whole, shown = join(key, value), join(key, _replaced(value, key, without_secrets))
    recorded = hidden_setting(shown)
    if HIDDEN in recorded:
        kept = concealed()
        if kept.setdefault(shown, whole) != whole:
            raise CannotTellApart(shown)
        os.environ[CONCEALED] = json.dumps(kept | {recorded: whole})
    return shown


def hidden_setting(item: str) -> str:
    """`key=json` as it may be recorded."""
    key, value = split(item)
    return join(key, hidden_in(value, key))


def reveal(item: str) -> str:
    """A setting with its passwords."""
    if HIDDEN not in item:
        return item
    if item not in (kept := concealed()):
        raise SystemExit(f"{item}: the value behind {HIDDEN} is not known here. Start this through snakemake, or write the setting out.")
    return kept[item]


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


def _replaced(content: Json, name: str, replace: Callable[[str], str]) -> Json:
    if isinstance(content, dict):
        return {key: _replaced(value, str(key), replace) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_replaced(value, name, replace) for value in content]
    if isinstance(content, str):
        return HIDDEN if is_secret_name(name, content) else replace(content)
    is_number = isinstance(content, int | float) and not isinstance(content, bool)
    return HIDDEN if is_number and is_secret_name(name, str(content)) else content


def concealed() -> dict[str, str]:
    """The settings that contain a password, by their concealed form."""
    kept: dict[str, str] = json.loads(os.environ.get(CONCEALED, "{}"))
    return kept


@functools.lru_cache(maxsize=8)
def _known(environment: frozenset[tuple[str, str]]) -> re.Pattern[str] | None:
    """Matches the secrets in the environment: under a name such as HF_TOKEN, in an address or in a setting, in every encoding."""
    found: set[str] = set()
    for name, value in environment:
        if name == CONCEALED:
            for item in json.loads(value).values():
                found |= _secrets_of(item)
        elif name not in NO_SECRETS and (SECRET.search(name) or (PERHAPS_SECRET.search(name) and not WORD_OR_PATH.fullmatch(value))):
            found.add(value)
        else:
            without_secrets(value, found)
    found = {value for value in found if len(value) >= SHORTEST_CHARACTERS and HIDDEN not in value}
    forms = {
        form for value in found for form in (value, quote(value, safe=""), quote_plus(value), json.dumps(value)[1:-1], repr(value)[1:-1])
    }
    # longer ones first, since a shorter one may be part of them
    return re.compile("|".join(map(_bounded, sorted(forms, key=lambda form: (-len(form), form))))) if forms else None


def _secrets_of(item: str) -> set[str]:
    """The secrets in a setting."""
    found: set[str] = set()

    def collect(content: Json, name: str) -> None:
        if isinstance(content, dict):
            for key, value in content.items():
                collect(value, str(key))
        elif isinstance(content, list):
            for value in content:
                collect(value, name)
        elif is_secret_name(name, str(content)) and not isinstance(content, bool | None):
            found.add(str(content))
        elif isinstance(content, str):
            without_secrets(content, found)

    key, value = split(item)
    collect(value, key)
    return found


def _bounded(value: str) -> str:
    """The pattern of a secret; a plain word or number must not be part of a longer one."""
    plain = re.escape(value)
    return rf"(?<![A-Za-z0-9.]){plain}(?![A-Za-z0-9])" if value.isalpha() or value.isdigit() else plain
