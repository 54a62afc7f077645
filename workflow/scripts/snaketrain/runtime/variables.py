"""`${NAME}` in a setting stands for an environment variable: the way in for passwords and tokens.

Settings are passed on, recorded and compared as they are written. Only what connects to a server, or calls a class with its
arguments, takes the values, by `resolved`.
"""

import os
import re
from collections.abc import Iterator
from typing import TypeVar

from snaketrain.runtime.environment_secrets import USED_AS_SECRETS

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
    if isinstance(content, str):
        yield from (match[2] for match in VARIABLE.finditer(content) if not match[1])
    elif isinstance(content, dict | list):
        for value in content.values() if isinstance(content, dict) else content:
            yield from names_in(value)


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
