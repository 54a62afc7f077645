"""Chats in the raw data: a cell with a list of messages, each with a role and a content."""

import json

from snaketrain.data.cells import NotText
from snaketrain.runtime.json_types import JsonObject

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
