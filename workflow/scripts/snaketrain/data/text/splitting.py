"""Which example goes into which split: a pure function of the usable rows and the settings."""

import numpy

from snaketrain.config.schema import Data

SPLITS = ("train", "dev", "test")
UNUSED = -1


def assign(source: str, usable: numpy.ndarray, data: Data) -> numpy.ndarray:
    """The number of each row's split, or UNUSED."""
    # RandomState, because numpy promises that its stream never changes
    drawn = numpy.random.RandomState(data.split_seed % 2**32).permutation(numpy.flatnonzero(usable))
    parts = _cut(drawn, data) if source == "train" else {source: drawn}
    assigned = numpy.full(len(usable), UNUSED, numpy.int8)
    for split, part in parts.items():
        assigned[part[: getattr(data, f"limit_{split}")]] = SPLITS.index(split)
    return assigned


def _cut(drawn: numpy.ndarray, data: Data) -> dict[str, numpy.ndarray]:
    # test comes first, so that another dev_fraction leaves it unchanged
    test = _size(len(drawn), data.test_fraction) if data.test is None else 0
    dev = _size(len(drawn), data.dev_fraction) if data.dev is None else 0
    return {"test": drawn[:test], "dev": drawn[test : test + dev], "train": drawn[test + dev :]}


def _size(total: int, fraction: float) -> int:
    return max(1, round(total * fraction)) if fraction else 0


def repeated(hashes: numpy.ndarray) -> numpy.ndarray:
    """Which of these texts occurred before."""
    order = numpy.argsort(hashes, kind="stable")
    ordered = hashes[order]
    again = numpy.zeros(len(hashes), bool)
    again[order[1:][ordered[1:] == ordered[:-1]]] = True
    return again


def among(hashes: numpy.ndarray, others: numpy.ndarray) -> numpy.ndarray:
    """Which of a few texts are among many others. `numpy.isin` would sort them all together, which takes more memory."""
    ordered = numpy.sort(others)
    return numpy.searchsorted(ordered, hashes, "left") < numpy.searchsorted(ordered, hashes, "right")
