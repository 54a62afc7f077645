"""Passwords and tokens: the way in, `${NAME}` in a setting, and the way out, where they are replaced by `***`.

Settings are passed on, recorded and compared as they are written; only what connects to a server, or calls a class with its
arguments, takes the values of the variables, by `resolved`. Whatever is written, shown or sent goes through `hidden` (a text),
`hidden_in` (what becomes JSON) or `Concealing` (the records of a logger). A secret is recognised by its form (secret_forms.py), or as a
value of the environment: unless the variable's name is known to be harmless, or the value looks like what variables usually hold, such as
a word, a number, a path, the name of a host or of a model. So `MAILER=geheim-4711-x` is hidden, and `STAGE=production` is not.
"""

import ast
import base64
import functools
import html
import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar
from urllib.parse import quote, quote_plus, unquote

from snaketrain.runtime.secret_forms import HIDDEN, SHORTEST_CHARACTERS, is_secret_name, without_secrets
from snaketrain.runtime.strict_json import Json

USED_AS_SECRETS = "SNAKETRAIN_SECRETS"  # names of the variables that the configuration refers to as ${NAME}
SECRET = re.compile(
    r"PASSWORD|PASSWD|PASSPHRASE|PASSCODE|SECRET|TOKENS?\d*$|(API|ACCESS|PRIVATE)_?KEY|JWT|COOKIE|WEBHOOK|(^|_)(PASS|PWD|PAT|PIN|DSN)\d*$",
    re.I,
)
PERHAPS_SECRET = re.compile(r"(^|_)(CRED(ENTIAL)?S?|AUTH|KEY|KEY_ID|TOKEN\w*|LOGIN|HOOK)\d*$", re.I)
# names whose values are hidden only if they have the form of a secret
HARMLESS = re.compile(
    r"_|PWD|OLDPWD|SHLVL|MAIL|EDITOR|VISUAL|PAGER|PS\d|IFS|TZ|LS_COLORS|INVOCATION_ID|JOURNAL_STREAM|LOADEDMODULES|_LMFILES_|HISTCONTROL|MLFLOW_\w*URI"
    r"|(.*_)?(PATH|PATHS|DIR|DIRS|HOME|ROOT|FOLDER|PREFIX|FILE|BUNDLE|SOCK|HOST|HOSTS|HOSTNAME|NODE|NODES|NODELIST|PORT|ADDR|VERSION|NAME|USER"
    r"|LOGNAME|SHELL|LANG|LANGUAGE|TERM|LEVEL|DEVICES?|THREADS|SHA|COMMIT|FLAGS|DISPLAY|SESSION|RUN_ID|OPTIONS|OPTS)|\w*PATH"
    r"|(SLURM|CUDA|NCCL|GLOO|UCX|OMP|KMP|MKL|OPENBLAS|OMPI|PMI|PMIX|PRTE|HYDRA|TORCH|TORCHELASTIC|PYTORCH|NVIDIA|ROCR|HIP|LC|XDG|CONDA|MAMBA|VIRTUAL"
    r"|PYTHON\w*|PYTEST|SNAKEMAKE|LMOD|MODULES?|_?MODULETABLE\w*|BASH_FUNC|DBUS|SSH|KUBERNETES|CONTAINER|APPTAINER|SINGULARITY)_.*",
    re.I,
)
# a word, perhaps in CamelCase or with a number of two digits; a number; a version
WORD = re.compile(r"(?:[A-Z]?[a-z]{2,}){1,4}\d{0,2}|[A-Z]{1,12}\d{0,2}|[a-z]\d{0,3}|v?\d{1,6}")
SEPARATORS = re.compile(r"[-_./:,;=+@ ]+")
MOST_WORDS, LONGEST_WORDS, MOST_DIGITS = 3, 20, 14  # four words with 20 letters are a passphrase; a date with a time has 14 digits
WITHIN = re.compile(r"[^\s:/@,;]+:([^\s/@,;]{6,})(?=@|$)")  # user:password
LONGEST_KNOWN = 100_000  # of a value


def secrets_in(environment: Mapping[str, str]) -> set[str]:
    """The values, and parts of values, that must not be seen."""
    found: set[str] = set()
    used = set(environment.get(USED_AS_SECRETS, "").split(","))
    for name, whole in environment.items():
        value = whole.strip()
        if name == USED_AS_SECRETS or len(value) > LONGEST_KNOWN:
            continue
        without_secrets(value, found)
        sure = is_sure_name(name)
        if name in used and not HARMLESS.fullmatch(name):
            found.add(value)
        elif sure:
            # a short word or number occurs in any text
            found |= {value} if len(value) >= SHORTEST_CHARACTERS or not (value.isalpha() or value.isdigit()) else set()
        elif PERHAPS_SECRET.search(name) and (login := WITHIN.fullmatch(value)):
            found |= {value, login[1]}
        elif PERHAPS_SECRET.search(name) or not HARMLESS.fullmatch(name):
            found |= {value} if not is_ordinary(value) else set()
        if value in found:
            found |= {part for part in _parts(value, sure) if not is_ordinary(part)}
    return {value for value in found if len(value) >= 4 and HIDDEN not in value}


def is_ordinary(value: str) -> bool:
    """Whether a value under an unknown name is none that anybody would keep secret."""
    if len(value) < 8 or _is_path(value):
        return True
    if re.fullmatch(r"\w+://[\w.-]+(:\d+)?(/.*)?", value):  # an address, whose path may be a secret
        value = value.partition("://")[2]
    pieces = [piece for piece in SEPARATORS.split(value) if piece]
    if not all(WORD.fullmatch(piece) for piece in pieces):
        return False
    words = [piece for piece in pieces if piece.isalpha()]
    if sum(len(piece) for piece in pieces if piece.isdigit()) > MOST_DIGITS:
        return False
    return max(map(len, pieces), default=0) <= LONGEST_WORDS and (len(words) <= MOST_WORDS or sum(map(len, words)) < LONGEST_WORDS)


def is_sure_name(name: str) -> bool:
    """Whether a variable of this name holds a secret whatever its value looks like."""
    return bool(SECRET.search(name)) and name not in ("PWD", "OLDPWD")


def written_forms(secret: str) -> set[str]:
    """As it stands in JSON, Python, YAML, HTML, a shell, an address, and in one of these within another."""
    forms = {secret}
    for _ in range(2):
        forms |= {written for form in forms for written in _written(form)}
    return {form for form in forms if form}


def _written(text: str) -> Iterator[str]:
    yield from (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1], ascii(text)[1:-1])
    yield from (
        text.replace("'", "''"),
        text.replace("'", "'\"'\"'"),
        text.replace("'", r"\'"),
        text.replace("&", "&amp;"),
        text.replace('"', '""'),
    )
    yield from (html.escape(text), html.escape(text, quote=False), html.escape(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"))
    raw = text.encode(errors="surrogateescape")
    yield repr(raw)[2:-1]
    for quoted in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield from (quoted, re.sub("%..", lambda match: match[0].lower(), quoted))
    if not text.isascii():
        yield from (_yaml(text), text.encode("ascii", "xmlcharrefreplace").decode(), text.encode("ascii", "backslashreplace").decode())


def _yaml(text: str) -> str:
    """Of PyYAML without `allow_unicode`: escapes as in Python, but with upper-case digits."""
    escape = r"\\(x|u|U)((?<=x)[0-9a-f]{2}|(?<=u)[0-9a-f]{4}|(?<=U)[0-9a-f]{8})"
    return re.sub(escape, lambda match: f"\\{match[1]}{match[2].upper()}", ascii(text)[1:-1])


def encodings(secret: str) -> set[str]:
    """Base64 of it alone or within another text, such as user:password, and hexadecimal."""
    raw, found = secret.encode(errors="surrogateescape"), set()
    if len(raw) < SHORTEST_CHARACTERS:
        return set()
    for before in range(3):
        code = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
        # the first and the last character may have bits of what is around
        middle = code[(before * 8 + 5) // 6 : (before + len(raw)) * 8 // 6]
        found |= {middle, middle.replace("+", "-").replace("/", "_")} if len(middle) >= 7 else set()
    return found | {raw.hex(), raw.hex().upper()}


def _any_of(forms: set[str], pattern: Callable[[str], str]) -> re.Pattern[str]:
    # longer ones first, since a shorter one may be part of them
    ordered = sorted(forms, key=lambda form: (-len(form), form))
    return re.compile("|".join(map(pattern, ordered)) or "(?!)")  # without forms it never matches


def _bounded(value: str) -> str:
    """The pattern of a secret: line breaks may stand for its spaces, as in YAML; a short one or a plain word must not be part of a longer one."""
    plain = r"(?:\s|\\[ntr]|\\(?=\s))+".join(map(re.escape, re.split(r"\s+", value)))
    if value.isalpha() or value.isdigit() or (len(value) < 10 and value.isalnum()):
        return rf"(?<![A-Za-z0-9.]){plain}(?![A-Za-z0-9])"
    return plain


def _is_path(value: str) -> bool:
    """Paths, separated by colons, whose first folder exists."""

    def exists(path: str) -> bool:
        return path.startswith(("~", "./", "../")) or (path.startswith("/") and os.path.isdir(f"/{path.split('/')[1]}"))

    paths = [path for path in value.split(":") if path]
    return bool(paths) and all(map(exists, paths))


def _parts(value: str, of_secret_name: bool) -> Iterator[str]:
    """What somebody may read out of a value: lines, texts in JSON, the password of user:password, items of a list."""
    lines = value.splitlines()
    yield from lines if len(lines) > 1 else ()
    yield from (
        form for match in WITHIN.finditer(value) for form in (match[1], unquote(match[1]))
    )  # as it is in the address, and without %40
    if of_secret_name:
        yield from re.split(r"[\s,;]+", value)
    if value[0] in "{[":
        try:
            content = json.loads(value)
        except ValueError:
            try:
                content = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                return
        yield from _texts(content)


def _texts(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict | list | tuple):
        for inner in content.values() if isinstance(content, dict) else content:
            yield from _texts(inner)


def hidden(text: str) -> str:
    """The text without secrets: those of the environment, and those recognised by their form."""
    return _hiding()(text)


def hidden_in(content: Json, name: str = "", hide: Callable[[str], str] | None = None) -> Json:
    """The same for every text in a JSON value; any text or number under a name such as `password` is hidden."""
    hide = hide or _hiding_later()
    if isinstance(content, dict):
        return {key: hidden_in(value, str(key), hide) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [hidden_in(value, name, hide) for value in content]
    if isinstance(content, str):
        return HIDDEN if is_secret_name(name, content) else hide(content)
    is_number = isinstance(content, int | float) and not isinstance(content, bool)
    return HIDDEN if is_number and is_secret_name(name, str(content)) else content


class Concealing(logging.Filter):
    """A filter for loggers that hides secrets in all fields of a record."""

    def filter(self, record: logging.LogRecord) -> bool:
        hide = _hiding()
        fields = {name: value for name, value in vars(record).items() if isinstance(value, str | list | dict | tuple)}
        texts = [text for value in fields.values() if _has_texts_alone(value) for text in _texts(value)]
        # most records have no secret, as one look at all their texts shows: a dry run has two records for each job
        if (together := "\n".join(texts)) == hide(together):
            fields = {name: value for name, value in fields.items() if not _has_texts_alone(value)}
        for name, value in fields.items():
            if (clean := hidden_in(value, hide=hide)) != value:
                setattr(record, name, tuple(clean) if isinstance(value, tuple) else clean)
        return True


def _has_texts_alone(value: Json) -> bool:
    """Nothing is hidden in it because of its name."""
    return isinstance(value, str) or (isinstance(value, list | tuple) and all(isinstance(each, str) for each in value))


def hide_in_tracebacks() -> None:
    """Of errors that nothing catches, in a process whose output goes to a file as it is."""
    sys.excepthook = lambda *error: print(hidden("".join(traceback.format_exception(*error))), file=sys.stderr)
    threading.excepthook = lambda error: sys.excepthook(error.exc_type, error.exc_value or error.exc_type(), error.exc_traceback)


def _hiding_later() -> Callable[[str], str]:
    """Most lines of a journal have numbers alone, and need it for nothing."""
    hiding = functools.cache(_hiding)
    return lambda text: hiding()(text)


def _hiding() -> Callable[[str], str]:
    """What hides secrets while the environment is as now: looking at all its variables takes longer than looking at a text."""
    return _hiding_in(frozenset(os.environ.items()))


@functools.lru_cache(maxsize=8)
def _hiding_in(environment: frozenset[tuple[str, str]]) -> Callable[[str], str]:
    secrets = secrets_in(dict(environment))
    plain = {form for secret in secrets for form in written_forms(secret)}
    encoded = {form for secret in secrets for form in encodings(secret)} - plain
    # a text has one of these pieces if it has a secret in any form, so that most texts are ruled out quickly
    found = {max(re.split(r"\s+", form), key=len) for form in plain} | encoded
    pieces = [piece for piece in found if piece and not any(other != piece and other in piece for other in found)]
    around = r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]*?{}[A-Za-z0-9+/_-]*={{0,2}}"
    patterns = (_any_of(plain, _bounded), _any_of(encoded, lambda form: around.format(re.escape(form))))

    def hide(text: str) -> str:
        if len(text) < 4:  # shorter than any secret
            return text
        if any(piece in text for piece in pieces):
            for pattern in patterns:
                text = pattern.sub(HIDDEN, text)
        return without_secrets(text)

    return hide


VARIABLE = re.compile(r"(\$?)\$\{([A-Za-z_][A-Za-z0-9_]*)\}")  # $${NAME} is the text ${NAME}
T = TypeVar("T")


def resolved(content: T) -> T:
    """The content with the values of the variables in it."""
    result: object = content
    if isinstance(content, dict):
        result = {key: resolved(value) for key, value in content.items()}
    elif isinstance(content, list):
        result = [resolved(value) for value in content]
    elif isinstance(content, str):
        result = VARIABLE.sub(lambda match: match[0][1:] if match[1] else _value(match[2]), content)
    return result  # type: ignore[return-value]  # of the same type


def names_in(content: object) -> Iterator[str]:
    """The variables that a content refers to."""
    yield from (match[2] for text in _texts(content) for match in VARIABLE.finditer(text) if not match[1])


def all_set(content: object) -> bool:
    return all(os.environ.get(name) for name in names_in(content))


def _value(name: str) -> str:
    if not (value := os.environ.get(name)):
        raise SystemExit(
            f"The environment variable {name}, which the configuration refers to as ${{{name}}}, is not set here. Export it in the shell that "
            "starts snakemake; SLURM jobs inherit it, unless sbatch is given `--export`."
        )
    used = os.environ.get(USED_AS_SECRETS, "")
    if name not in used.split(","):
        os.environ[USED_AS_SECRETS] = f"{used},{name}".lstrip(",")  # it is hidden from now on
    return value
