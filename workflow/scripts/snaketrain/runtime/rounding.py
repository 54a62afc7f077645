"""How metrics are written for people: on progress lines, in tables and plots, on pages, in verdicts and model cards."""

import math
from decimal import ROUND_HALF_UP, Decimal
from typing import TypeGuard


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


def spoken(metric: str) -> str:
    return metric.replace("_", " ").replace("f1", "F1")
