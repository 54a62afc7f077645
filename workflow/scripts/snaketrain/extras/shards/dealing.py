"""Which files a shard consists of: the files, and the slices of large ones, are dealt to the shards one by one, in their order."""

import codecs
import re
from pathlib import Path
from typing import NamedTuple

from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData
from snaketrain.data.formats import COMPRESSED, WHOLE, FileSlice, ends_lines_as_ascii, format_of, parquet_file
from snaketrain.data.reading import readable
from snaketrain.runtime.manifests import Manifest


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


# --- Slices of large files, so that several jobs can share one.

SLICE_BYTES = 1 << 28
MOST_SLICES = 100  # of a file: whoever reads one counts the lines before it


def slices(path: Path, data: Data) -> list[FileSlice]:
    """Of a large file; others, and those whose rows may have several lines, are one slice."""
    kind, size = format_of(path, data.format), path.stat().st_size
    found = slices_of(size)
    if len(found) > 1 and kind == "parquet":
        return slices_of(size, parquet_file(path, str(path)).num_row_groups)
    if len(found) > 1 and path.suffix.lower() not in COMPRESSED and ends_lines_as_ascii(data.encoding):
        has_a_row_on_each_line = (kind == "jsonl" and not _is_array(path)) or (kind == "text" and data.text_unit == "line")
        return found if has_a_row_on_each_line else [WHOLE]
    return [WHOLE]


def slices_of(size: int, most: int = MOST_SLICES) -> list[FileSlice]:
    """Those of a file that can be divided. They depend on nothing but the file, so that another number of shards prepares nothing again."""
    total = max(1, min(most, -(-size // SLICE_BYTES)))
    return [FileSlice(number, total) for number in range(total)]


def _is_array(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(1000).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
