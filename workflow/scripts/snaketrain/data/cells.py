"""Chats in cells of the raw data, and what is wrong with the data.

A problem is an error, or a data issue, which is counted by kind and shown with its first few cases.
"""

import json
from collections import Counter

from snaketrain.labels.base import NotText
from snaketrain.runtime.strict_json import JsonObject

# --- Chats in the raw data: a cell with a list of messages, each with a role and a content.

ASSISTANT = "assistant"


def as_messages(value: object) -> str:
    """The messages of a cell as JSON; "" if there are none. What else they contain, such as calls of tools, is kept for the chat template."""
    if value is None or value == [] or value == "":
        return ""
    if not isinstance(value, list) or not all(map(_is_message, value)):
        raise NotText(f"{json.dumps(value, ensure_ascii=False, default=str)[:60]}, and not a list of messages")
    return json.dumps([{key: part for key, part in message.items() if part is not None} for message in value], ensure_ascii=False)


def read_messages(text: str) -> list[JsonObject]:
    """The inverse of `as_messages`."""
    return json.loads(text)


def is_answered(text: str) -> bool:
    return any(message["role"] == ASSISTANT for message in read_messages(text))


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str | None)


DESCRIPTIONS = {  # written to report.json
    "bad_encoding": "lines with bytes that do not fit `data.encoding`; shown as replacement characters",
    "zero": "lines with zero bytes, which a file has that was not written completely; they are kept",
    "carriage_return": "lines with a carriage return inside, which is kept: is it the end of a line?",
    "empty_file": "files without a row",
    "short_row": "rows with fewer fields than the header; the last ones are empty",
    "long_row": "rows with more fields than the header, for example because of an unquoted comma; dropped",
    "joined_rows": "rows that span several lines, each of which could be a row: a quote may be missing or superfluous",
    "empty_text": "rows without text; dropped",
    "no_answer": "chats in which the assistant says nothing; dropped",
    "missing_label": "rows without a label; dropped",
    "unknown_label": "rows whose label is not among the classes; dropped",
    "odd_label": "rows whose label is used, but looks wrong",
    "not_a_number": "rows whose label is not a number; dropped",
    "single_row_class": "classes with a single training row: a header read as a row, or a misspelt label?",
    "alike_classes": "classes whose names differ only in case, in spacing, or in how accented characters are composed: are they one?",
    "untrained_class": "development and test examples of a class that no training example has",
    "duplicate": "training examples whose text occurred before",
    "leaked_dev": "development examples whose text is also trained on",
    "leaked_test": "test examples whose text is also trained on",
    "test_in_dev": "test examples whose text is also in the development set, which chooses the checkpoint",
    "cut_label": "examples whose label lies in what was cut off; they are used",
    "truncated": "examples truncated to `data.max_length` tokens, or targets to `data.max_target_length`",
}


class BadData(ValueError):
    """The data cannot be used; the message says where, what is wrong, and what to do."""


class DataIssues:
    SHOWN = 5  # cases of each kind

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def add(self, kind: str, location: str, excerpt: str = "") -> None:
        self.counts[kind] += 1
        shown = self.examples.setdefault(kind, [])
        if len(shown) < self.SHOWN:
            printable = "".join(character if character.isprintable() else " " for character in excerpt[:80])
            shown.append(f"{location}: {printable}" if excerpt else location)

    def add_all(self, kind: str, count: int, first: list[tuple[str, str]]) -> None:
        """Several cases at once; the first ones with location and excerpt."""
        for location, excerpt in first:
            self.add(kind, location, excerpt)
        if count > len(first):
            self.counts[kind] += count - len(first)

    def merge(self, other: "DataIssues", without: tuple[str, ...] = ()) -> None:
        for kind in other.counts:
            if kind not in without:
                self.counts[kind] += other.counts[kind]
                self.examples[kind] = (self.examples.get(kind, []) + other.examples[kind])[: self.SHOWN]

    def content(self) -> JsonObject:
        """To be read by `of`."""
        return {"counts": dict(self.counts), "examples": self.examples}

    @classmethod
    def of(cls, content: JsonObject) -> "DataIssues":
        issues = cls()
        issues.counts, issues.examples = Counter(content["counts"]), content["examples"]
        return issues

    def report(self) -> JsonObject:
        return {
            kind: {"count": self.counts[kind], "what": DESCRIPTIONS[kind], "first": self.examples.get(kind, [])} for kind in DESCRIPTIONS
        }
