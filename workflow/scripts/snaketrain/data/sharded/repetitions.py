"""Which texts occur twice among any number of them: range by range of their keys, so that neither memory nor time grows faster than the data."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow

from snaketrain.data.prepared_files import open_table

AT_A_TIME = 1 << 18  # keys that are compared together


class Keys(NamedTuple):
    """Of the examples of a part: ascending, each with the number of its example; of equal keys the first example comes first."""

    keys: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, keys: np.ndarray) -> "Keys":
        order = np.argsort(keys, kind="stable").astype(np.uint32)
        return cls(keys[order], order)


def write_keys(folder: Path, split: str, keys: np.ndarray) -> None:
    table = pyarrow.table(Keys.of(keys)._asdict())
    with pyarrow.ipc.new_file(str(folder / f"{split}.keys.arrow"), table.schema) as file:
        file.write_table(table)


def read_keys(folders: Iterable[Path], split: str) -> list[Keys]:
    """Memory-mapped, and by pyarrow, which keeps no file open: there may be more parts than a process may open files."""
    tables = (open_table([folder / f"{split}.keys.arrow"]) for folder in folders)
    return [Keys(*(table[name].chunk(0).to_numpy() for name in Keys._fields)) for table in tables if len(table)]


def repeated(parts: Sequence[Keys], most: int) -> tuple[int, list[int]]:
    """How many keys occurred before, and the first positions of such; the parts follow one another."""
    found, first = 0, list[int]()
    for keys, positions in _ranges(parts, _count(parts)):
        order = np.argsort(keys, kind="stable")
        again = order[1:][keys[order][1:] == keys[order][:-1]]
        found, first = found + len(again), sorted([*first, *np.sort(positions[again])[:most].tolist()])[:most]
    return found, first


def among(parts: Sequence[Keys], others: Sequence[Keys], most: int) -> tuple[int, list[int]]:
    """How many keys are among others, and the first positions of such."""
    count = max(_count(parts), _count(others))
    found, first = 0, list[int]()
    for (keys, positions), (known, _) in zip(_ranges(parts, count), _ranges(others, count), strict=True):
        there = positions[np.isin(keys, known)]
        found, first = found + len(there), sorted([*first, *np.sort(there)[:most].tolist()])[:most]
    return found, first


def _count(parts: Sequence[Keys]) -> int:
    """Into how many ranges, a power of two, the keys are divided."""
    return 1 << max(0, (sum(len(part.keys) for part in parts) - 1) // AT_A_TIME).bit_length()


def _ranges(parts: Sequence[Keys], count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The keys of each range with their positions, of equal keys in ascending order."""
    starts = np.cumsum([0, *(len(part.keys) for part in parts)])
    bounds = np.array([number * (2**64 // count) for number in range(count)], np.uint64)
    cuts = [[*np.searchsorted(part.keys, bounds), len(part.keys)] for part in parts]
    for number in range(count):
        within = [slice(*ends[number : number + 2]) for ends in cuts]
        chosen = [(part.keys[some], part.rows[some] + start) for part, some, start in zip(parts, within, starts, strict=False)]
        yield (
            np.concatenate([keys for keys, _ in chosen] or [np.array([], np.uint64)]),
            np.concatenate([positions for _, positions in chosen] or [np.array([], np.int64)]),
        )
