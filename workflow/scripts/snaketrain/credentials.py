"""Passwords and tokens come from the environment, and stay there: hidden in every text that is kept or sent."""

import os
import re

IN_AN_ADDRESS = re.compile(r"(\w://)[^/\s:@]*:[^/\s@]+@")  # scheme://user:password@host
SECRET_NAMES = ("PASSWORD", "TOKEN", "SECRET", "API_KEY", "ACCESS_KEY")
SHORTEST_CHARACTERS = 6  # shorter ones are words of any text
HIDDEN = "***"


def hidden(text: str) -> str:
    """The text without passwords in addresses, and without what the environment holds under a name such as HF_TOKEN."""
    text = IN_AN_ADDRESS.sub(rf"\1{HIDDEN}@", text)
    for value in _secrets():
        text = text.replace(value, HIDDEN)
    return text


def has_password(address: str) -> bool:
    return bool(IN_AN_ADDRESS.search(address))


def _secrets() -> list[str]:
    found = {value for name, value in os.environ.items() if name.upper().endswith(SECRET_NAMES) and len(value) >= SHORTEST_CHARACTERS}
    return sorted(found, key=len, reverse=True)  # the longer first, of which another may be a part
