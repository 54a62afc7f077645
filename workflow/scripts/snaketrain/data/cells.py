"""Cells of the raw data as text. Labels and conditions are compared in this form, in the data and in the configuration."""

import math
import re

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
