"""The key of a text: by it alone an example is in a split, and repetitions are found over all files."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy
import pyarrow

from snaketrain.config.schema import Data
from snaketrain.data.loading import open_table
from snaketrain.data.splitting import SPLITS, Keys, fractions
from snaketrain.data.surveying import normal_text


def text_key(texts: Iterable[str]) -> int:
    """64 bits, equal for texts with the same `normal_text`, in every process."""
    return int.from_bytes(hashlib.blake2b(normal_text(texts).encode(), digest_size=8).digest(), "little")


def assign_by_key(keys: numpy.ndarray, source: str, data: Data) -> numpy.ndarray:
    """The number of each example's split, by its text alone: so it does not depend on other files, and equal texts are never divided."""
    if source != "train":
        return numpy.full(len(keys), SPLITS.index(source), numpy.int8)
    drawn = _mixed(keys ^ _mixed(numpy.array([data.split_seed], numpy.uint64))) / 2.0**64
    splits = numpy.array([SPLITS.index(split) for split in ("test", "dev", "train")], numpy.int8)
    return splits[numpy.searchsorted(numpy.cumsum(fractions(data)), drawn, side="right")]


def _mixed(numbers: numpy.ndarray) -> numpy.ndarray:
    """Splitmix64: maps neighbouring numbers to unrelated ones."""
    mixed = numbers + numpy.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> numpy.uint64(31))


def write_keys(folder: Path, split: str, keys: numpy.ndarray) -> None:
    table = pyarrow.table(Keys.of(keys)._asdict())
    with pyarrow.ipc.new_file(str(folder / f"{split}.keys.arrow"), table.schema) as file:
        file.write_table(table)


def read_keys(folders: Iterable[Path], split: str) -> list[Keys]:
    """Memory-mapped, and by pyarrow, which keeps no file open: there may be more parts than a process may open files."""
    tables = (open_table([folder / f"{split}.keys.arrow"]) for folder in folders)
    return [Keys(*(table[name].chunk(0).to_numpy() for name in Keys._fields)) for table in tables if len(table)]
