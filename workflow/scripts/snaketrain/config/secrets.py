"""Secrets in a configuration: as `${NAME}`, which names an environment variable, and never as a literal."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from snaketrain.config.schema.of_extras import modules
from snaketrain.runtime.credentials import VARIABLE, is_sure_name, names_in
from snaketrain.runtime.secret_forms import HIDDEN, SHORTEST_CHARACTERS, TOKEN_NAME, is_secret_name, without_secrets
from snaketrain.runtime.strict_json import Json, JsonObject

SHELL = ("setup", "launch_command", "on_end")  # a shell takes variables there, and in SHELL of an extra's `settings.py`
OF_SHELL = re.compile(r"\$\w+|\$\{[^}]*\}|\$\([^)]*\)")
KEYS_OF_DATA = ("class_weights", "columns", "sha256")  # the names below are not those of settings
NO_SECRETS = re.compile(r"[/~.].*|default|anonymous|none|env|auto|null|true|false|\*+|", re.I)


class Text(NamedTuple):
    """A text, or a whole number, in the configuration."""

    place: tuple[str, ...]  # each key on its own, also those of dotted keys
    value: str
    is_text: bool = True

    @property
    def path(self) -> str:
        return ".".join(self.place)

    @property
    def names(self) -> list[str]:
        return [part for part in self.place if not part.isdecimal()]

    @property
    def is_shell(self) -> bool:
        return self.names[-1] in (*SHELL, *(name for extra in modules("settings") for name in getattr(extra, "SHELL", ())))

    @property
    def takes_variables(self) -> bool:
        """Whether ${NAME} stands for a variable here; in other texts it is text."""
        names = self.names
        if "arguments" in names:
            return names[names.index("arguments") - 1] != "model"
        return names[-2:] == ["tracking", "uri"] or (names[-1] == "path" and ("://" in self.value or self.value.startswith("${")))


def literal_secrets(config: JsonObject) -> Iterator[str]:
    """Problems with secrets that are written out."""
    for text in texts(config):
        if _is_secret(text):
            yield f"{text.path}: holds a secret, which would be recorded and shown. {_remedy(text)}"


def environment_problems(config: JsonObject, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Variables that are not set or do not arrive where they are used, and settings with the value of a secret variable."""
    known = {name: value for name, value in environment.items() if is_sure_name(name) and len(value) >= SHORTEST_CHARACTERS}
    used = sorted(variables_in(config))
    for text in texts(config):
        if text.takes_variables:
            for name in dict.fromkeys(names_in(text.value)):
                if not environment.get(name):
                    yield (
                        f"{text.path}: the environment variable {name} is not set. Export it in the shell that starts snakemake, from which SLURM "
                        f"jobs inherit it; write $${{{name}}} where that text itself is meant."
                    )
        elif list(names_in(text.value)) and {"path", "arguments", "environment"} & set(text.names):
            yield f"{text.path}: a variable is not replaced here. {_why_not(text)}"
        for name in (name for name, value in known.items() if value in text.value):
            yield f"{text.path}: has the value of the environment variable {name}. {_remedy(text, name)}"
        if used and text.names[-1] == "sbatch" and (given := re.search(r"--export[= ](\S+)", text.value)):
            exported = given[1].split(",")
            if "ALL" not in exported and (missing := [name for name in used if name not in exported]):
                yield f"{text.path}: `--export` keeps {', '.join(missing)} from the jobs, which the configuration refers to. Add it, or remove `--export`."


def variables_in(config: JsonObject) -> set[str]:
    """The names of the variables that the configuration takes values from."""
    return {name for text in texts(config) if text.takes_variables for name in names_in(text.value)}


def _is_secret(text: Text) -> bool:
    value = VARIABLE.sub("", text.value)
    value = OF_SHELL.sub("", value) if text.is_shell else value
    if text.names[-1:] == ["environment"] or "environment" in text.names[-2:-1]:
        return False  # compute.environment, which has rules of its own
    found: set[str] = set()
    if text.is_text:
        without_secrets(value, found)
    if found - {HIDDEN}:
        return True
    name = text.names[-1]
    if not {*KEYS_OF_DATA}.isdisjoint(text.names) or NO_SECRETS.fullmatch(value):
        return False
    plain = re.fullmatch(r"[^\s<>\[\]{}|()]{4,}", value)  # "<s>" and "[PAD]" are tokens of a vocabulary
    return is_secret_name(name, value) or (text.is_text and bool(TOKEN_NAME.fullmatch(name) and plain))


def _remedy(text: Text, name: str = "NAME") -> str:
    export = "" if name != "NAME" else "Put it into an environment variable, and write "
    if text.takes_variables or text.names[-1] in ("uri", "path"):
        return f"{export or 'Write '}${{{name}}} here."
    if text.is_shell:
        return f'{export or "Write "}"${name}" here: the shell replaces it, and jobs inherit the environment.'
    return f"Remove it. {_why_not(text)}"


def _why_not(text: Text) -> str:
    if "environment" in text.names:
        return "Jobs inherit the environment of the shell that starts snakemake: leave it out."
    if "arguments" in text.names:
        return "The arguments of a model are saved with its weights: read the variable in your class."
    if text.names[-1] == "path":
        return "Only the address of an object store takes variables: write the path out."
    return "Only addresses and `arguments` of classes take ${NAME}."


def texts(config: JsonObject) -> list[Text]:
    """All of a configuration that are below some name."""
    return [text for text in _texts(config) if text.names]


def _texts(content: Json, place: tuple[str, ...] = ()) -> Iterator[Text]:
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _texts(value, (*place, *str(key).split(".")))
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield from _texts(value, (*place, str(number)))
    elif isinstance(content, str):
        yield Text(place, content)
    elif isinstance(content, int) and not isinstance(content, bool):
        yield Text(place, str(content), is_text=False)
