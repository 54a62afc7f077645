"""Reads configuration files and what the command line changes, and says of each mistake in which line it stands.

Snakemake by itself takes the last of two equal keys without a word, and every value of `--config` for a text.
"""

import json
import os
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path

import yaml

from snaketrain.config.errors import ConfigurationError, shown
from snaketrain.config.plain_values import DEEPEST
from snaketrain.runtime.json_types import Json, JsonObject

LONGEST_NAME = 100
# of two such settings each says what the other says: where one is given, it takes the place of the other in what it changes
ALTERNATIVES = {
    "train.steps": "train.epochs",
    "train.evaluate_every": "train.evaluations_per_epoch",
    "train.batch_tokens": "train.batch_size",
}


def read_configuration(files: Iterable[str | Path], command_line: Iterable[str] | None = None) -> JsonObject:
    """All files together, a later one over an earlier one, and `name=value` of the command line over them."""
    config: JsonObject = {}
    problems: list[str] = []
    for file in files:
        where = _short(str(file))
        text, told = _read(Path(file), where)
        found, more = _parsed(text, where) if text is not None else ({}, told)
        problems += more
        config = overridden(config, found)
    for entry in command_line or ():
        name, _, text = str(entry).partition("=")
        found, more = _parsed(f"{name}: {text}" if "\n" not in text else f"{name}:\n{text}", f"--config {name}")
        problems += more
        config = overridden(config, found)
    if problems:
        raise ConfigurationError(problems)
    return config


def overridden(old: JsonObject, new: JsonObject) -> JsonObject:
    """The old settings with new ones over them, and without the alternatives of these."""
    both: JsonObject = merged(without_alternatives(old, new), new)
    return both


def without_alternatives(old: JsonObject, new: JsonObject) -> JsonObject:
    """The old settings but those which a new one takes the place of."""
    for pair in ALTERNATIVES.items():
        for given, other in (pair, pair[::-1]):
            if value_at(new, given) is not None and value_at(new, other) is None and value_at(old, other) is not None:
                section, _, name = other.partition(".")
                old = old | {section: {key: value for key, value in old[section].items() if key != name}}
    return old


def value_at(config: Json, path: str) -> Json:
    """What stands at a dotted place, if anything does."""
    for name in path.split("."):
        config = config.get(name) if isinstance(config, dict) else None
    return config


def merged(old: Json, new: Json) -> Json:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {key: merged(old.get(key), value) for key, value in new.items()}


def _short(file: str) -> str:
    """A path as messages name it: from here, if it is below, and its end if it is long."""
    name = file.removeprefix(f"{os.getcwd()}/")
    return name if len(name) <= LONGEST_NAME else f"...{name[-LONGEST_NAME:]}"


def _read(file: Path, where: str) -> tuple[str | None, list[str]]:
    try:
        raw = file.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return None, [f"{where}: cannot be read ({reason}). Name a readable file: config/config.yaml, or another by --configfile."]
    try:
        return raw.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return None, [f"{where}, line {line}: byte 0x{raw[error.start]:02x} is not UTF-8. Save the file in the encoding UTF-8."]


def _parsed(text: str, where: str) -> tuple[JsonObject, list[str]]:
    """What a text says, and what is wrong with how it is written."""
    try:
        found = _json(text)
        loader = yaml.SafeLoader(text if found is None else text.replace("\t", " "))  # which JSON may have between its values
        node = loader.get_single_node()
        problems = [f"{where}, {problem}" for problem in _twice(node, loader)] if node else []
        if found is None and not problems:
            found = loader.construct_document(node) if node else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        what = " ".join(filter(None, (error.problem, error.context)))
        return {}, [f"{where}, {place}not YAML: {what}. Correct the line, or one shortly before it (indent with spaces, not tabs)."]
    except yaml.YAMLError as error:  # a character that may stand in no YAML file
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        return {}, [f"{where}, line {line}: not YAML: {str(error).splitlines()[0]}. Remove the character."]
    except RecursionError:
        return {}, [f"{where}: is nested deeper than {DEEPEST} levels. Write it flatter."]
    except (ValueError, TypeError, AttributeError, OverflowError) as error:  # such as 2024-13-45, a date that is none
        return {}, [f"{where}: holds a value that is none: {error}. Put it in quotes."]
    if not problems and not isinstance(found, dict):
        return {}, [f"{where}: expects settings with their values, such as `train:`, at the top level, not {shown(found)}."]
    return found, problems


def _json(text: str) -> Json:
    """What it says as JSON, whose escapes and exponents YAML reads otherwise; None where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _twice(root: yaml.Node, loader: yaml.SafeLoader) -> Iterator[str]:
    """Keys that stand more than once in the same place."""
    waiting: list[tuple[tuple[str, ...], yaml.Node]] = [((), root)]
    seen: set[int] = set()
    while waiting:
        place, node = waiting.pop()
        if id(node) in seen or len(place) > DEEPEST:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += [((*place, str(number)), inner) for number, inner in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            first: dict[Hashable, int] = {}
            for key, inner in node.value:
                if key.tag == "tag:yaml.org,2002:merge" or not isinstance(key, yaml.ScalarNode):
                    continue  # what is merged in may be there already
                name = loader.construct_object(key)
                waiting.append(((*place, str(name)), inner))
                line = key.start_mark.line + 1
                if name in first:
                    path = ".".join((*place, str(name)))
                    yield f"lines {first[name]} and {line}: `{path}` stands twice, and one would be ignored. Remove one."
                first.setdefault(name, line)
