"""The journals that a training writes: one of the whole training, and one of each rank that keeps files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from snaketrain.runtime import journal
from snaketrain.runtime.manifests import make_private_folder
from snaketrain.runtime.rank_logs import keeps_files
from snaketrain.strategies.base import Strategy


class Journal(Protocol):
    """Events in the order in which they happened."""

    def begin(self, resume_step: int, **about: object) -> None: ...

    def write(self, event: str, **content: object) -> None: ...

    def sync(self) -> None: ...


def open_journals(
    folder: Path,
    strategy: Strategy,
    check: Callable[[], None] = lambda: None,
    about: Mapping[str, object] = MappingProxyType({}),
    own_journal: bool | None = None,
) -> tuple[journal.Journal, journal.Journal]:
    """The journal of the training, which only rank 0 writes, and the one of this rank; `about` describes this attempt.

    `own_journal`: whether this rank writes one; by default the first rank of each node does.
    """
    make_private_folder(folder / "logs")
    whole = journal.Journal(folder / "journal.jsonl", strategy.rank == 0, check, about)
    return whole, journal.Journal(folder / f"logs/rank-{strategy.rank}.jsonl", keeps_files() if own_journal is None else own_journal)
