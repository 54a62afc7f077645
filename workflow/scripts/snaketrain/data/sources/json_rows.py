"""The rows of a JSON file: an object on each line, or an array of objects."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain

from snaketrain.data.sources.data_issues import BadData
from snaketrain.runtime.strict_json import Json, JsonObject

CHARACTERS = 2**16  # of an array that are read at once; more where an object, or a line, is longer
SPACE = re.compile(r"\s*")


def json_rows(lines: Iterator[str], name: str, first: int = 1) -> Iterator[tuple[int, JsonObject]]:
    """The line where each object begins, and the object. `first`: the number of the first line, where these are not all lines of the file."""
    if first > 1:
        return _objects(lines, name, first)
    leading: list[str] = []
    for line in lines:
        leading.append(line)
        if line.strip():
            break
    is_array = bool(leading) and leading[-1].lstrip().startswith("[")
    return (_array if is_array else _objects)(chain(leading, lines), name)


def _objects(lines: Iterator[str], name: str, first: int = 1) -> Iterator[tuple[int, JsonObject]]:
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if isinstance(row, dict) and line.count(":") > len(row):  # a key may occur twice, of which only the last value is kept
                json.loads(line, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            raise BadData(
                f"{name}, line {number}: not JSON ({error}). Expected one object per line, or an array of objects: correct or remove the line."
            ) from None
        if not isinstance(row, dict):
            raise BadData(
                f'{name}, line {number}: expected one JSON object per line, such as {{"text": "..."}}, not {line.strip()[:40]!r}.'
            )
        yield number, row


def _array(lines: Iterator[str], name: str) -> Iterator[tuple[int, JsonObject]]:
    decode = json.JSONDecoder(object_pairs_hook=_object).raw_decode
    text, at, line, expected = "", 0, 1, "["
    while True:
        text, at, line = _next(lines, text, at, line)
        found = text[at : at + 1]
        if found == "]" and expected == ",":
            text, at, line = _next(lines, text, at + 1, line)
            if text:
                raise BadData(
                    f"{name}, line {line}: {text[at : at + 40]!r} follows the end of the array. Write one array, or one object per line."
                )
            return
        if found != expected:
            raise BadData(f"{name}, line {line}: expected {expected!r} in an array of objects, not {found!r}. Is the file complete?")
        text, at, line = _next(lines, text, at + 1, line)
        if expected == "[" and text[at : at + 1] == "]":
            return
        expected = ","
        while True:
            try:
                row, end = decode(text, at)
                break
            except (ValueError, RecursionError) as error:
                more = _read(lines, max(CHARACTERS, len(text) - at))
                if not more:
                    raise BadData(f"{name}, line {line}: not JSON ({getattr(error, 'msg', error)}). Correct the object there.") from None
                text, at = text[at:] + more, 0
        if not isinstance(row, dict):
            raise BadData(f"{name}, line {line}: expected a JSON object in the array, not {text[at:end][:40]!r}.")
        yield line, row
        line += text.count("\n", at, end)
        at = end


def _next(lines: Iterator[str], text: str, at: int, line: int) -> tuple[str, int, int]:
    """The text, the position of the next character that is no space, and its line; an empty text at the end of the file."""
    while True:
        found = SPACE.match(text, at)
        end = found.end() if found else at
        line += text.count("\n", at, end)
        if end < len(text):
            return text, end, line
        text, at = _read(lines, CHARACTERS), 0
        if not text:
            return "", 0, line


def _read(lines: Iterator[str], characters: int) -> str:
    read: list[str] = []
    while characters > 0 and (line := next(lines, None)) is not None:
        read.append(line)
        characters -= len(line)
    return "".join(read)


def _object(pairs: list[tuple[str, Json]]) -> JsonObject:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError(f"it has {next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)!r} twice")
    return made
