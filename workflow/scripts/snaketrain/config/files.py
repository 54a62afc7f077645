"""Reads configuration files and `--config` from the command line, and reports each error with its line.

Snakemake by itself silently uses the last of two equal keys, and reads every value of `--config` as text.
"""

import json
import os
import re
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path

import yaml

from snaketrain.config.errors import ConfigurationError, shown
from snaketrain.runtime.strict_json import Json, JsonObject

LONGEST_NAME = 100
READ_AS_ANOTHER = re.compile(r"[-+]?(0[0-7_]+|[1-9][0-9_]*(:[0-5]?[0-9])+)")  # YAML's octal and sexagesimal numbers: 010 is 8, 1:30 is 90
NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # in JSON
# two ways to set the same thing: a run or file that gives one of them replaces the other
ALTERNATIVES = {
    "train.steps": "train.epochs",
    "train.evaluate_every": "train.evaluations_per_epoch",
    "train.batch_tokens": "train.batch_size",
}


class Loader(yaml.SafeLoader):
    """Dates are texts, as in the files of data."""


Loader.yaml_implicit_resolvers = {
    first: [each for each in found if each[0] != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_configuration(files: Iterable[str | Path], command_line: Iterable[str] | None = None) -> JsonObject:
    """All files merged, later ones over earlier ones, and `name=value` of the command line over them."""
    config: JsonObject = {}
    problems: list[str] = []
    for file in files:
        where = _short(str(file))
        text, unreadable = _read(Path(file), where)
        found, more = _parsed(text, where) if text is not None else ({}, unreadable)
        problems += more
        config = overridden(config, found)
    for entry in command_line or ():
        name, _, text = str(entry).partition("=")
        found, more = _parsed(f"{name}: {text}" if "\n" not in text else f"{name}:\n{text}", f"--config {name}")
        problems += more
        found = {key: value for given, inner in (found or {}).items() for key, value in _undotted(str(given), inner).items()}
        config = overridden(config, found)
    if problems:
        raise ConfigurationError(problems)
    return config


def _undotted(key: str, value: Json) -> JsonObject:
    """`train.seed=1` on the command line, like `train={seed: 1}`."""
    first, dot, rest = key.partition(".")
    return {first: _undotted(rest, value)} if dot and first and rest else {key: value}


def overridden(old: JsonObject, new: JsonObject) -> JsonObject:
    """The old settings with the new ones merged over them, and without alternatives of the new ones."""
    return merged(without_alternatives(old, new), new)


def without_alternatives(old: JsonObject, new: JsonObject) -> JsonObject:
    """The old settings without those that a new one is an alternative of."""
    for pair in ALTERNATIVES.items():
        for given, other in (pair, pair[::-1]):
            if value_at(new, given) is not None and value_at(new, other) is None and value_at(old, other) is not None:
                section, _, name = other.partition(".")
                old = old | {section: {key: value for key, value in old[section].items() if key != name}}
    return old


def value_at(config: Json, path: str) -> Json:
    """The value at a dotted path, or None."""
    for name in path.split("."):
        config = config.get(name) if isinstance(config, dict) else None
    return config


def merged(old: Json, new: Json) -> Json:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {key: merged(old.get(key), value) for key, value in new.items()}


def _short(file: str) -> str:
    """A path for messages: relative to the current folder if it is below it, and only its end if it is long."""
    name = file.removeprefix(f"{os.getcwd()}/")
    return name if len(name) <= LONGEST_NAME else f"...{name[-LONGEST_NAME:]}"


def _read(file: Path, where: str) -> tuple[str | None, list[str]]:
    try:
        raw = file.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        target = " If it is a target, write it before --configfile, which takes all names after it." if "." not in file.name else ""
        return None, [f"{where}: cannot be read ({reason}). Name a readable file: config/config.yaml, or another by --configfile.{target}"]
    try:
        return raw.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return None, [f"{where}, line {line}: byte 0x{raw[error.start]:02x} is not UTF-8. Save the file in the encoding UTF-8."]


def _parsed(text: str, where: str) -> tuple[JsonObject, list[str]]:
    """The settings in a text, and its syntax errors."""
    try:
        found = _json(text)
        loader = Loader(text if found is None else text.replace("\t", " "))  # JSON allows tabs between values, YAML does not
        node = loader.get_single_node()
        problems = [f"{where}, {problem}" for problem in _ambiguities(node, loader)] if node else []
        if found is None and not problems:
            found = loader.construct_document(node) if node else {}
        written = json.dumps(found, ensure_ascii=False)  # refuses what is no JSON, such as a list in itself
        written.encode()  # refuses half of a surrogate pair
        if NUL.search(written):
            raise ValueError("a NUL byte")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        what = " ".join(filter(None, (error.problem, error.context)))
        return {}, [f"{where}, {place}not YAML: {what}. Correct the line, or one shortly before it (indent with spaces, not tabs)."]
    except yaml.YAMLError as error:  # a character that YAML does not allow
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        return {}, [f"{where}, line {line}: not YAML: {str(error).splitlines()[0]}. Remove the character."]
    except RecursionError:
        return {}, [f"{where}: is nested too deeply. Write it flatter."]
    except (ValueError, TypeError, AttributeError) as error:
        return {}, [f"{where}: contains what cannot be a setting: {error}. Remove it, or put it in quotes."]
    if not problems and not isinstance(found, dict):
        return {}, [f"{where}: expects settings with their values, such as `train:`, at the top level, not {shown(found)}."]
    return found, problems


def _json(text: str) -> Json:
    """The text as JSON, or None if it is not JSON; YAML would read JSON's escapes and exponents differently."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _ambiguities(root: yaml.Node, loader: yaml.SafeLoader) -> Iterator[str]:
    """Keys that occur more than once in the same mapping, and numbers that YAML reads as other ones."""
    waiting: list[tuple[tuple[str, ...], yaml.Node]] = [((), root)]
    seen: set[int] = set()
    while waiting:
        place, node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            yield from _misread(node, loader)
        elif isinstance(node, yaml.SequenceNode):
            waiting += [((*place, str(number)), inner) for number, inner in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            first: dict[Hashable, int] = {}
            for key, inner in node.value:
                if key.tag == "tag:yaml.org,2002:merge" or not isinstance(key, yaml.ScalarNode):
                    continue  # a merged mapping may repeat keys
                yield from _misread(key, loader)
                name = loader.construct_object(key)
                waiting.append(((*place, str(name)), inner))
                line = key.start_mark.line + 1
                if name in first:
                    path = ".".join((*place, str(name)))
                    yield f"lines {first[name]} and {line}: `{path}` is given twice, and one would be ignored. Remove one."
                first.setdefault(name, line)


def _misread(node: yaml.ScalarNode, loader: yaml.SafeLoader) -> Iterator[str]:
    """A label such as 010, or a time."""
    if node.style is None and node.tag == "tag:yaml.org,2002:int" and READ_AS_ANOTHER.fullmatch(node.value):
        found = loader.construct_object(node)
        yield f'line {node.start_mark.line + 1}: YAML reads `{node.value}` as the number {found}. Write "{node.value}" in quotes, or {found}.'
