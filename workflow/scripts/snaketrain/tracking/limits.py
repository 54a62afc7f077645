"""What MLflow accepts: names and texts of limited length, here without passwords, and numbers with as many digits as one reads."""

import re

from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.manifests import digest

LONGEST_PARAM, LONGEST_TAG, LONGEST_KEY = 6000, 8000, 250
EXACT = ("train/loss",)  # the extra `reproduce` compares them bit for bit


def cut(value: object, longest: int) -> str:
    """A text without passwords, cut to a length that MLflow accepts."""
    text = hidden(str(value))
    return text if len(text) <= longest else text[: longest - 6] + " … cut"


def rounded(name: str, value: float) -> float:
    """A metric to five significant digits; whole numbers are exact."""
    return value if name in EXACT or value.is_integer() else float(f"{value:.5g}")


def allowed(name: str) -> str:
    """A metric's name with the characters that MLflow allows."""
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)[:LONGEST_KEY]


def allowed_model_name(name: str) -> str:
    """A model's name with characters that MLflow allows and that are safe in an address."""
    return "".join(c if c.isalnum() or c in "_-" else "-" for c in name)[:LONGEST_KEY]


def folder_name(experiment: str) -> str:
    """A folder name for an experiment, whose own name may contain characters that a path must not."""
    plain = re.sub(r"[^A-Za-z0-9._=+-]", "-", experiment).lstrip(".")[:80]
    return plain if plain and plain == experiment else f"{plain}-{digest(experiment)[:8]}"


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
