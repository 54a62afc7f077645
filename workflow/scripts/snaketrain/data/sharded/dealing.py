"""Which files a shard consists of: the files, and the slices of large ones, are dealt to the shards one by one, in their order."""

import hashlib
import re
import shutil
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from snaketrain.config.schema import Data
from snaketrain.data.sources.data_issues import BadData
from snaketrain.data.sources.file_slices import WHOLE, FileSlice
from snaketrain.data.sources.formats import format_of, slices
from snaketrain.data.sources.reading import readable
from snaketrain.data.text.splitting import SPLITS
from snaketrain.data.text.surveying import normal_text
from snaketrain.runtime.manifests import Manifest, read_manifest


class RawFile(NamedTuple):
    source: str  # train or dev
    name: str  # in the folder of its source
    path: Path
    sha256: str
    file_slice: FileSlice = WHOLE

    @property
    def fetched(self) -> str:
        """In the folder of the raw data."""
        return f"{self.source}/{self.name}"

    @property
    def title(self) -> str:
        return (
            self.fetched
            if self.file_slice == WHOLE
            else f"{self.fetched}, slice {self.file_slice.number + 1:03} of {self.file_slice.total}"
        )


class Shard(NamedTuple):
    number: int
    total: int

    @classmethod
    def of(cls, name: str) -> "Shard":
        """From a name such as `00003-of-00008`."""
        if not (found := re.fullmatch(r"(\d+)-of-(\d+)", name)):
            raise ValueError(f"{name!r} is not the name of a shard: write one such as 00003-of-00008")
        return cls(int(found[1]), int(found[2]))

    def files(self, raw: Manifest, data: Data) -> list[RawFile]:
        return raw_files(raw, data)[self.number :: self.total]


def raw_files(raw: Manifest, data: Data) -> list[RawFile]:
    """All files of a known format, source by source, and of large ones each slice; `raw`: of the fetched data."""
    try:
        return [file._replace(file_slice=each) for file in whole_files(raw, data) for each in slices(file.path, data)]
    except OSError as error:
        raise BadData(f"{error.filename}: cannot be read ({error.strerror}). Restore the file, and start snakemake again.") from None


def whole_files(raw: Manifest, data: Data) -> list[RawFile]:
    """Undivided; nothing is read."""
    found: list[RawFile] = []
    for source, names in raw.facts["files"].items():
        files = [RawFile(source, name, raw.folder / source / name, raw.files[f"{source}/{name}"]) for name in names]
        readable([file.path for file in files], data)  # refuses a source of unknown formats
        found += [file for file in files if format_of(file.path, data.format)]
    return found


# --- The parts that the shards have made.

ARROW = tuple(f"{split}.arrow" for split in SPLITS)


def parts_of(files: list[RawFile], shards: list[Manifest], output: Path) -> list[Manifest]:
    """In the order of the files, whose slices were dealt to the shards one by one; `files`: undivided."""
    turns = zip_longest(*(shard.facts["parts"] for shard in shards))
    parts = [read_manifest(output / "parts" / name / "manifest.json") for turn in turns for name in turn if name]
    slices = {part.facts["file"]: part.facts["slice"][1] for part in parts}  # their number
    wanted = [(file.fetched, file.sha256, number) for file in files for number in range(slices.get(file.fetched, 1))]
    if [(part.facts["file"], *part.inputs.values(), part.facts["slice"][0]) for part in parts] != wanted:
        raise ValueError(
            f"the {len(shards)} shards do not have each raw file once: a file has changed while they were prepared. Delete {output / 'shards'} and "
            "start snakemake again, which prepares what has changed."
        )
    return parts


def remove_others(output: Path, parts: list[Manifest], shards: list[Manifest]) -> None:
    """Remove the parts of earlier files, settings and code, and the shards of another number of them."""
    kept = {part.folder.name for part in parts} | {shard.folder.name for shard in shards}
    for folder in [*(output / "parts").iterdir(), *(output / "shards").iterdir(), *(output / "surveys").glob("*")]:
        if folder.is_dir() and folder.name not in kept:
            shutil.rmtree(folder)


# --- Which split an example goes into, by its text alone: so it does not depend on the other files, and equal texts are never divided.


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
