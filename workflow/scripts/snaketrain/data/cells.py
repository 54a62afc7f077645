"""Cells of the raw data as text. Labels and conditions are compared in this form, in the data and in the configuration."""

import json
import math
import re

from snaketrain.runtime.strict_json import JsonObject

WHOLE_NUMBER = re.compile(r"-?\d+\.0+")


class NotText(ValueError):
    """A cell with a value that cannot be written as text."""


def as_text(value: object) -> str:
    """A value as a text file would contain it, so that 1, 1.0, "1", "1.0" and " 1" are the same label; a missing one is ""."""
    if isinstance(value, str):
        # pandas writes 1 as 1.0 where the column also has empty cells
        text = value.strip()
        return text.partition(".")[0] if "." in text and WHOLE_NUMBER.fullmatch(text) else text
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list | tuple | bytes):
        kind = "an object" if isinstance(value, dict) else "bytes" if isinstance(value, bytes) else "a list"
        raise NotText(f"{kind}, {str(value)[:60]}")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else as_text(str(value))


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
    messages: list[JsonObject] = json.loads(text)
    return messages


def is_answered(text: str) -> bool:
    """Whether the assistant says anything in a chat."""
    return any(message["role"] == ASSISTANT for message in read_messages(text))


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str | None)
