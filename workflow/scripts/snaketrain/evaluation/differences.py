"""The settings in which runs differ."""

import json
from collections.abc import Mapping, Sequence

# these add nothing to the source beside them
BESIDE_THE_POINT = (".sha256", ".hub_type")


def differing_settings(runs: Sequence[Mapping[str, object]], left_out: tuple[str, ...] = BESIDE_THE_POINT) -> list[str]:
    """Names of the settings that differ between runs; a missing setting equals a null or empty one. `left_out`: suffixes of names to ignore."""
    names = dict.fromkeys(name for settings in runs for name in settings if not name.endswith(left_out))
    return [name for name in names if len({_text(settings.get(name)) for settings in runs}) > 1]


def _text(value: object) -> str:
    return json.dumps(value if value or isinstance(value, bool | int | float) else None)
