"""Settings as `key=json` strings, which Snakemake compares, manifests contain and MLflow records."""

import json
from collections.abc import Iterable

from snaketrain.runtime.strict_json import Json, JsonObject


def join(key: str, value: Json) -> str:
    return f"{key}={json.dumps(value, ensure_ascii=False)}"


def split(string: str) -> tuple[str, Json]:
    key, _, value = string.partition("=")
    return key, json.loads(value)


def by_key(strings: Iterable[str]) -> JsonObject:
    return dict(map(split, strings))


def flattened(name: str, value: Json) -> list[tuple[str, Json]]:
    """Each setting below a section with its dotted key; a mapping whose keys are not all identifiers is one value."""
    if isinstance(value, dict) and value and all(key.isidentifier() for key in value):
        return [pair for key, inner in value.items() for pair in flattened(f"{name}.{key}", inner)]
    return [(name, value)]


def nested(strings: Iterable[str]) -> JsonObject:
    """The nested sections of `key=json` strings."""
    sections: JsonObject = {}
    for key, value in map(split, strings):
        *parents, last = key.split(".")
        section = sections
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return sections
