"""Which texts occur twice among any number of them: range by range of their keys, so that memory does not grow with the data."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow

from snaketrain.data.prepared_files import open_table

AT_A_TIME = 1 << 22  # keys that are compared together
READ = 1 << 20


def write_keys(folder: Path, split: str, keys: np.ndarray) -> None:
    table = pyarrow.table({"key": keys})
    with pyarrow.ipc.new_file(str(folder / f"{split}.keys.arrow"), table.schema) as file:
        file.write_table(table)


def read_keys(folders: Iterable[Path], split: str) -> list[np.ndarray]:
    """Memory-mapped, and by pyarrow, which keeps no file open: there may be more parts than a process may open files."""
    return [chunk.to_numpy() for folder in folders for chunk in open_table([folder / f"{split}.keys.arrow"])["key"].chunks]


def repeated(parts: Sequence[np.ndarray], most: int) -> tuple[int, list[int]]:
    """How many keys occurred before, and the first positions of such; the parts follow one another."""
    found, first = 0, list[int]()
    for keys, positions in _ranges(parts):
        order = np.argsort(keys, kind="stable")
        again = order[1:][keys[order][1:] == keys[order][:-1]]
        found, first = found + len(again), sorted([*first, *np.sort(positions[again])[:most].tolist()])[:most]
    return found, first


def among(parts: Sequence[np.ndarray], others: Sequence[np.ndarray], most: int) -> tuple[int, list[int]]:
    """How many keys are among others, and the first positions of such."""
    count = max(_count(parts), _count(others))
    found, first = 0, list[int]()
    for (keys, positions), (known, _) in zip(_ranges(parts, count), _ranges(others, count), strict=True):
        there = positions[np.isin(keys, known)]
        found, first = found + len(there), sorted([*first, *np.sort(there)[:most].tolist()])[:most]
    return found, first


def _count(parts: Sequence[np.ndarray]) -> int:
    """Into how many ranges, a power of two, the keys are divided."""
    return 1 << max(0, (sum(map(len, parts)) - 1) // AT_A_TIME).bit_length()


def _ranges(parts: Sequence[np.ndarray], count: int | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The keys of each range in order of their positions, with these."""
    count = count or _count(parts)
    for number in range(count):
        chosen = list(_of_range(parts, number, count))
        yield (
            np.concatenate([keys for keys, _ in chosen] or [np.array([], np.uint64)]),
            np.concatenate([positions for _, positions in chosen] or [np.array([], np.int64)]),
        )


def _of_range(parts: Sequence[np.ndarray], number: int, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    bits, start = count.bit_length() - 1, 0
    for part in parts:
        for first in range(0, len(part), READ):
            keys = np.asarray(part[first : first + READ])
            here = np.flatnonzero(keys >> np.uint64(64 - bits) == number) if bits else np.arange(len(keys))
            yield keys[here], here + start + first
        start += len(part)
