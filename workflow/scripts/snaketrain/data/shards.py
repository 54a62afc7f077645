"""Which files a shard consists of: the files, and the slices of large ones, are dealt to the shards one by one, in their order."""

import re
import shutil
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData
from snaketrain.data.formats import WHOLE, FileSlice, format_of, slices
from snaketrain.data.reading import readable, rows
from snaketrain.data.splitting import SPLITS
from snaketrain.data.surveying import Surveyor, classes
from snaketrain.runtime.manifests import Manifest, read_manifest
from snaketrain.runtime.strict_json import JsonObject


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


# --- The classes of training data whose labels are not listed: each file is surveyed on its own, then all are decided on.


def survey_file(data: Data, file: RawFile, root: Path) -> JsonObject:
    """For each label how often it occurs, how often in a first line, and where first."""
    surveyor = Surveyor("train", data, None)
    for _ in surveyor.examples(rows([file.path], data, surveyor.issues, root, file_slice=file.file_slice)):
        pass
    return {
        label: [count, surveyor.in_first_lines[label], surveyor.first_locations[label]] for label, count in surveyor.label_counts.items()
    }


def decide_classes(data: Data, surveys: Iterable[JsonObject]) -> list[str]:
    """The names of the classes in order; `surveys` of all files, in their order."""
    merged = Surveyor("train", data, None)
    for survey in surveys:
        for label, (count, in_first_lines, location) in survey.items():
            merged.label_counts[label] += count
            merged.in_first_lines[label] += in_first_lines
            merged.first_locations.setdefault(label, location)
    if not merged.label_counts:
        raise BadData(f"data.label: no row of train has a value in column {data.label!r}. Name the right column.")
    merged.refuse_too_many_classes()
    merged.refuse_headers()
    return classes(data, merged.label_counts)[0]
