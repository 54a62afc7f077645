"""Which example goes into which split, as pure functions of the rows and the settings; and which texts occur twice."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy

from snaketrain.config.schema import Data

SPLITS = ("train", "dev", "test")
UNUSED = -1


def splits_of(source: str, data: Data) -> tuple[str, ...]:
    """The splits that the rows of a source are divided into."""
    if source not in SPLITS:  # one of `train_sets_of_extras`
        return (source,)
    return tuple(split for split in SPLITS if split == source or (source == "train" and getattr(data, split) is None))


def assign(source: str, usable: numpy.ndarray, data: Data) -> numpy.ndarray:
    """The number of each row's split, or UNUSED."""
    # RandomState, because numpy promises that its stream never changes
    drawn = numpy.random.RandomState(data.split_seed % 2**32).permutation(numpy.flatnonzero(usable))
    parts = {source: drawn}
    if source == "train":
        test, dev = (max(1, round(len(drawn) * fraction)) if fraction else 0 for fraction in fractions(data))
        parts = {"test": drawn[:test], "dev": drawn[test : test + dev], "train": drawn[test + dev :]}
    assigned = numpy.full(len(usable), UNUSED, numpy.int8)
    for split, part in parts.items():
        assigned[part[: getattr(data, f"limit_{split}")]] = SPLITS.index(split)
    return assigned


def fractions(data: Data) -> tuple[float, float]:
    """Of the test set and the dev set. Test comes first, so that another dev_fraction leaves it unchanged."""
    return data.test_fraction if data.test is None else 0.0, data.dev_fraction if data.dev is None else 0.0


# --- Which texts occur twice among any number of them: range by range of their keys, so that neither memory nor time grows faster than the data.

AT_A_TIME = 1 << 18  # keys that are compared together


class Keys(NamedTuple):
    """Of the texts of some examples: ascending, each with the number of its example; of equal keys the first example comes first."""

    keys: numpy.ndarray
    rows: numpy.ndarray

    @classmethod
    def of(cls, keys: numpy.ndarray) -> "Keys":
        order = numpy.argsort(keys, kind="stable").astype(numpy.uint32)
        return cls(keys[order], order)


def repeated(parts: Sequence[Keys], most: int) -> tuple[int, list[int]]:
    """How many keys occurred before, and the first positions of such; the parts follow one another."""
    found, first = 0, list[int]()
    for keys, positions in _ranges(parts, _count(parts)):
        order = numpy.argsort(keys, kind="stable")
        again = order[1:][keys[order][1:] == keys[order][:-1]]
        found, first = found + len(again), sorted([*first, *numpy.sort(positions[again])[:most].tolist()])[:most]
    return found, first


def among(parts: Sequence[Keys], others: Sequence[Keys], most: int) -> tuple[int, list[int]]:
    """How many keys are among others, and the first positions of such."""
    count = max(_count(parts), _count(others))
    found, first = 0, list[int]()
    for (keys, positions), (known, _) in zip(_ranges(parts, count), _ranges(others, count), strict=True):
        ordered = numpy.sort(known)  # `numpy.isin` would sort all of them together
        there = positions[numpy.searchsorted(ordered, keys, "left") < numpy.searchsorted(ordered, keys, "right")]
        found, first = found + len(there), sorted([*first, *numpy.sort(there)[:most].tolist()])[:most]
    return found, first


def _count(parts: Sequence[Keys]) -> int:
    """Into how many ranges, a power of two, the keys are divided."""
    return 1 << max(0, (sum(len(part.keys) for part in parts) - 1) // AT_A_TIME).bit_length()


def _ranges(parts: Sequence[Keys], count: int) -> Iterator[tuple[numpy.ndarray, numpy.ndarray]]:
    """The keys of each range with their positions, of equal keys in ascending order."""
    starts = numpy.cumsum([0, *(len(part.keys) for part in parts)])
    bounds = numpy.array([number * (2**64 // count) for number in range(count)], numpy.uint64)
    cuts = [[*numpy.searchsorted(part.keys, bounds), len(part.keys)] for part in parts]
    for number in range(count):
        within = [slice(*ends[number : number + 2]) for ends in cuts]
        chosen = [(part.keys[some], part.rows[some] + start) for part, some, start in zip(parts, within, starts, strict=False)]
        yield (
            numpy.concatenate([keys for keys, _ in chosen] or [numpy.array([], numpy.uint64)]),
            numpy.concatenate([positions for _, positions in chosen] or [numpy.array([], numpy.int64)]),
        )
