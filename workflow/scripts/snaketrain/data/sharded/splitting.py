"""Which split an example goes into, by its text alone: so it does not depend on the other files, and equal texts are never divided."""

import hashlib
from collections.abc import Iterable

import numpy as np

from snaketrain.config.schema import Data
from snaketrain.data.text.splitting import SPLITS
from snaketrain.data.text.surveying import normal_text


def text_key(texts: Iterable[str]) -> int:
    """64 bits, equal for texts with the same `normal_text`, in every process."""
    return int.from_bytes(hashlib.blake2b(normal_text(texts).encode(), digest_size=8).digest(), "little")


def splits_of(source: str, data: Data) -> tuple[str, ...]:
    """The splits that the files of a source are divided into."""
    return tuple(split for split in SPLITS if split == source or (source == "train" and getattr(data, split) is None))


def assign_by_key(keys: np.ndarray, source: str, data: Data) -> np.ndarray:
    """The number of each example's split."""
    if source != "train":
        return np.full(len(keys), SPLITS.index(source), np.int8)
    # test comes first, so that another dev_fraction leaves it unchanged
    test = data.test_fraction if data.test is None else 0.0
    dev = data.dev_fraction if data.dev is None else 0.0
    drawn = _mixed(keys ^ _mixed(np.array([data.split_seed], np.uint64))) / 2.0**64
    bounds, splits = [test, test + dev], np.array([SPLITS.index(split) for split in ("test", "dev", "train")], np.int8)
    return splits[np.searchsorted(bounds, drawn, side="right")]


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Splitmix64: maps neighbouring numbers to unrelated ones."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
