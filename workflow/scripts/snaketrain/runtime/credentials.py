"""Passwords and tokens stay where they are used: wherever something is written down, shown or sent, `***` stands for them.

`hidden` does that for a text, `hidden_in` for what becomes JSON, `Concealing` for a log. Settings are special, since stages
compute with them: what is recorded of them and passed to stages is `conceal`ed, and the stage that uses them `reveal`s
them again from an environment variable, which nothing writes down.
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

CONCEALED = "SNAKETRAIN_CONCEALED"  # what is shown of settings that hold a password, with the settings
# what the names of environment variables end with
SECRET = re.compile(r"(PASSWORD|PASSWD|PASSPHRASE|PASSCODE|TOKEN|SECRETS?|(API|ACCESS|SECRET|PRIVATE)_?KEY|(^|_)(PASS|PWD|PAT))\d*$", re.I)
PERHAPS_SECRET = re.compile(r"(^|_)(CREDENTIALS?|AUTH|KEY|KEY_ID)\d*$", re.I)
WORD_OR_PATH = re.compile(r"[A-Za-z]{1,15}|[/~].*")  # SORT_KEY=accuracy
NO_SECRETS = ("PWD", "OLDPWD")


class CannotTellApart(ValueError):
    """Two settings that differ in a password alone."""


def hidden(text: str) -> str:
    """The text without passwords: those that its form gives away, and those that the environment or a setting holds."""
    if len(text) < SHORTEST_CHARACTERS:
        return text
    known = _known(frozenset(os.environ.items()))
    return without_secrets(known.sub(HIDDEN, text) if known else text)


def hidden_in(content: Json, name: str = "") -> Json:
    """The same of every text in what can be JSON; under a name such as `password` of any text or number."""
    return _replaced(content, name, hidden)


def has_password(address: str) -> bool:
    found: set[str] = set()
    without_secrets(address, found)
    return bool(found)


def conceal(key: str, value: Json) -> str:
    """`key=json` of a setting as it may be seen. It does not depend on the environment, which makes nothing stale."""
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
    """A setting as it was given."""
    if HIDDEN not in item:
        return item
    if item not in (kept := concealed()):
        raise SystemExit(f"{item}: what {HIDDEN} stands for is not known here. Start this by snakemake, or write the setting out.")
    return kept[item]


class Concealing(logging.Filter):
    """On a logger: all that a record holds is hidden."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in list(vars(record).items()):
            if isinstance(value, tuple):
                setattr(record, name, tuple(hidden_in(value)))
            elif isinstance(value, str | list | dict) and (clean := hidden_in(value)) != value:
                setattr(record, name, clean)
        return True


class ConcealingFormatter(logging.Formatter):
    """Hides in the finished line, its traceback included."""

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
    """The settings that hold a password, by what is recorded of them."""
    kept: dict[str, str] = json.loads(os.environ.get(CONCEALED, "{}"))
    return kept


@functools.lru_cache(maxsize=8)
def _known(environment: frozenset[tuple[str, str]]) -> re.Pattern[str] | None:
    """What the environment holds under a name such as HF_TOKEN, or within an address or a setting, in each way to write it."""
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
    ways = {way for value in found for way in (value, quote(value, safe=""), quote_plus(value), json.dumps(value)[1:-1], repr(value)[1:-1])}
    # the longer first, of which another may be a part
    return re.compile("|".join(map(_bounded, sorted(ways, key=lambda way: (-len(way), way))))) if ways else None


def _secrets_of(item: str) -> set[str]:
    """The parts of a setting that are hidden."""
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
    """A plain word or number only where it stands alone."""
    plain = re.escape(value)
    return rf"(?<![A-Za-z0-9.]){plain}(?![A-Za-z0-9])" if value.isalpha() or value.isdigit() else plain
