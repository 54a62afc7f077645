"""Several classes in one cell of a table of predictions: `plot|actor`, or a JSON list where the name of a class contains the `|`."""

import json
from collections.abc import Sequence

SEPARATOR = "|"


def as_cell(chosen: list[str], classes: Sequence[str]) -> str:
    return json.dumps(chosen, ensure_ascii=False) if _as_list(classes) else SEPARATOR.join(chosen)


def in_cell(cell: str, classes: Sequence[str]) -> set[str]:
    return set(json.loads(cell) if _as_list(classes) else cell.split(SEPARATOR))


def _as_list(classes: Sequence[str]) -> bool:
    return any(SEPARATOR in name for name in classes)
