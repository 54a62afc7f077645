"""The journals that a training writes: one of the whole training, one per rank."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from snaketrain.runtime import journal
from snaketrain.strategies.base import Strategy


class Journal(Protocol):
    """Events in the order in which they happened."""

    def begin(self, resume_step: int, **about: object) -> None: ...

    def write(self, event: str, **content: object) -> None: ...

    def sync(self) -> None: ...


def open_journals(
    folder: Path, strategy: Strategy, check: Callable[[], None] = lambda: None, about: Mapping[str, object] = MappingProxyType({})
) -> tuple[journal.Journal, journal.Journal]:
    """The journal of the training, which only the first rank writes, and the one of this rank; `about` describes this attempt."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    whole = journal.Journal(folder / "journal.jsonl", strategy.rank == 0, check, about)
    return whole, journal.Journal(folder / f"logs/rank-{strategy.rank}.jsonl")
