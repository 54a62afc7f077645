"""How values are written: as JSON that any program reads, and figures that people read.

The standard of JSON has neither NaN nor infinities: a number that is not finite is written as null.

Null among `metrics` is read back as NaN, so that what computes with metrics never meets None. An infinity becomes NaN as well: whatever
decides by a metric treats all that is not finite alike.

What is written to be read back ends with a checksum of its text: bit rot, a partial copy or an edit by hand is noticed when it is read.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, TypeAlias, TypeGuard

# --- Types of JSON and YAML content, which is checked where it is read, unless this package has written it.

Json: TypeAlias = Any
JsonObject: TypeAlias = dict[str, Any]


CHECKSUM = re.compile(r',\s*"checksum": "([0-9a-f]{16})"\s*}\s*\Z')


def dumps(content: Json, **options: Any) -> str:
    """`options`: those of `json.dumps`."""
    try:
        return json.dumps(content, allow_nan=False, **options)
    except ValueError:  # it has a number that is not finite
        return json.dumps(_finite(content), allow_nan=False, **options)


def loads(text: str | bytes) -> Json:
    return json.loads(text, object_hook=_with_nan)


def with_checksum(content: JsonObject, indent: int | None = 2) -> str:
    """The text of a file that `checked` reads. `content` has at least one key."""
    begins = dumps(content, indent=indent, ensure_ascii=False).removesuffix("}").rstrip()
    return f'{begins},\n  "checksum": "{_checksum(begins)}"\n}}\n'


def checked(text: str, parse: Callable[[str], Json] = json.loads) -> JsonObject:
    """The content as it was written; a ValueError if the text was changed since."""
    if not (end := CHECKSUM.search(text)):
        raise ValueError("it has no checksum: it is incomplete, or was written by an earlier version")
    if end[1] != _checksum(text[: end.start()]):
        raise ValueError("it was changed after it was written: its checksum is another one")
    content: JsonObject = parse(text)
    del content["checksum"]
    return content


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def metrics_of(found: dict[str, float | None]) -> dict[str, float]:
    """Metrics as they were before they were written."""
    return {name: math.nan if value is None else value for name, value in found.items()}


def _finite(content: Json) -> Json:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _with_nan(found: JsonObject) -> JsonObject:
    metrics = found.get("metrics")
    return {**found, "metrics": metrics_of(metrics)} if isinstance(metrics, dict) and None in metrics.values() else found


# --- How metrics are written for people: on progress lines, in tables and plots, on pages, in verdicts and model cards.


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def rounded(value: object, digits: int = 3) -> str:
    """A dash if it is not a number. Small values keep two significant digits, and halves are rounded up: 319 of 400, 0.7975, is 0.798."""
    if not is_number(value):
        return "–"
    if digits and 0 < abs(value) < 0.5 * 10**-digits:
        return f"{value:.2g}"
    exact = Decimal(f"{value:.12g}")  # as people write the number, not the nearest binary one, which may be just below
    return f"{exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):,}"


def shortened(names: Sequence[str], most: int) -> str:
    """`a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def unquoted(value: Json) -> str:
    """A value as JSON, but a text without its quotes: much as it is in YAML."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def spoken(metric: str) -> str:
    return metric.replace("_", " ").replace("f1", "F1")
