"""The training sets beside `data.train`, as the core asks for them: in a file of its own, since all that reads data depends on it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snaketrain.config.schema import Data, Examples


def train_sets(data: "Data") -> dict[str, "Examples"]:
    """By their settings."""
    return {f"train_sets.{name}": source for name, source in data.train_sets.items()}  # type: ignore[attr-defined]  # one of FIELDS
