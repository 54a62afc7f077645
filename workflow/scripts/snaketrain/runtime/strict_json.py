"""JSON that any program reads. Its standard has neither NaN nor infinities: a number that is not finite is written as null.

Null among `metrics` is read back as NaN, so that what computes with metrics never meets None. An infinity becomes NaN as well: whatever
decides by a metric treats all that is not finite alike.
"""

import json
import math
from typing import Any

from snaketrain.runtime.json_types import Json, JsonObject


def dumps(content: Json, **options: Any) -> str:
    """`options`: those of `json.dumps`."""
    return json.dumps(_finite(content), allow_nan=False, **options)


def loads(text: str | bytes) -> Json:
    return json.loads(text, object_hook=_with_nan)


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
