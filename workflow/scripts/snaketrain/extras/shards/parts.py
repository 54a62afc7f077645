"""Prepares one file of the raw data: it is read, tokenised and written once, as a folder with a file for each split.

The folder's name is a digest of all that its content depends on, so it is found again whichever job needs it. It is renamed into place
when it is complete: a job that is killed leaves nothing that looks like a part.
"""

import hashlib
import os
import shutil
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute

from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData, DataIssues
from snaketrain.data.loading import open_table
from snaketrain.data.reading import check_columns, readable, rows
from snaketrain.data.split_files import SplitWriter, in_batches, progress, row_schema
from snaketrain.data.splitting import SPLITS, Keys, fractions, splits_of
from snaketrain.data.surveying import Surveyor, classes, normal_text
from snaketrain.data.tokenizer import Tokenizer, TokensDiffer
from snaketrain.data.tokenizer_files import copy_tokenizer, with_tokenizer
from snaketrain.labels.base import VALID, WITHHELD
from snaketrain.runtime.manifests import Manifest, damage, digests, read_manifest, write_checked
from snaketrain.runtime.strict_json import JsonObject

# --- The raw files, which are dealt to the shards one by one.


class RawFile(NamedTuple):
    source: str  # train or dev
    title: str  # its name in the folder of the raw data
    path: Path
    sha256: str


def raw_files(raw: Manifest, data: Data) -> list[RawFile]:
    """All files of a known format, source by source; `raw`: of the fetched data."""
    found: list[RawFile] = []
    for source, names in raw.facts["files"].items():
        kept = {path for path, _ in readable([raw.folder / source / name for name in names], data)}
        titles = [title for name in names if raw.folder / (title := f"{source}/{name}") in kept]
        found += [RawFile(source, title, raw.folder / title, raw.files[title]) for title in titles]
    return found


def files_of_shard(shard: str, raw: Manifest, data: Data) -> list[RawFile]:
    """`shard`: such as 00003-of-00008."""
    number, total = map(int, shard.split("-of-"))
    return raw_files(raw, data)[number::total]


# --- The key of a text: by it alone an example is in a split, and repetitions are found over all files.


def text_key(texts: Iterable[str]) -> int:
    """64 bits, equal for texts with the same `normal_text`, in every process."""
    return int.from_bytes(hashlib.blake2b(normal_text(texts).encode(), digest_size=8).digest(), "little")


def assign_by_key(keys: np.ndarray, source: str, data: Data) -> np.ndarray:
    """The number of each example's split, by its text alone: so it does not depend on other files, and equal texts are never divided."""
    if source != "train":
        return np.full(len(keys), SPLITS.index(source), np.int8)
    drawn = _mixed(keys ^ _mixed(np.array([data.split_seed], np.uint64))) / 2.0**64
    splits = np.array([SPLITS.index(split) for split in ("test", "dev", "train")], np.int8)
    return splits[np.searchsorted(np.cumsum(fractions(data)), drawn, side="right")]


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Splitmix64: maps neighbouring numbers to unrelated ones."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def write_keys(folder: Path, split: str, keys: np.ndarray) -> None:
    table = pyarrow.table(Keys.of(keys)._asdict())
    with pyarrow.ipc.new_file(str(folder / f"{split}.keys.arrow"), table.schema) as file:
        file.write_table(table)


def read_keys(folders: Iterable[Path], split: str) -> list[Keys]:
    """Memory-mapped, and by pyarrow, which keeps no file open: there may be more parts than a process may open files."""
    tables = (open_table([folder / f"{split}.keys.arrow"]) for folder in folders)
    return [Keys(*(table[name].chunk(0).to_numpy() for name in Keys._fields)) for table in tables if len(table)]


# --- The part of one file.

KEYS, SPLIT = "key", "split"  # columns that the batches have besides those of the rows


def kept_part(folder: Path) -> Manifest | None:
    try:
        found = read_manifest(folder / "manifest.json")
    except SystemExit:  # there is none, or it is damaged
        return None
    return None if damage(found) else found


def make_part(folder: Path, data: Data, file: RawFile, root: Path, tokenizer: Tokenizer) -> Manifest:
    building = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    facts = _write(building, data, file, root, tokenizer)
    files = digests(building, sorted(path.name for path in building.iterdir()))
    manifest = Manifest("prepare_shard", folder.name, {}, {file.title: file.sha256}, files, facts)
    # without times: a part that is made again has the same bytes, so what reads it is not stale
    write_checked(building / "manifest.json", {name: value for name, value in asdict(manifest).items() if name != "path"})
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(building, folder)
    return read_manifest(folder / "manifest.json")


def _write(folder: Path, data: Data, file: RawFile, root: Path, tokenizer: Tokenizer) -> JsonObject:
    if problems := check_columns(data, file.source, readable([file.path], data)):
        raise BadData("\n".join(problems))
    names, class_of = classes(data)
    surveyor, issues = Surveyor(file.source, data, set(class_of)), DataIssues()
    splits = splits_of(file.source, data)
    writers = {split: SplitWriter(data, names, class_of, data.label is not None) for split in splits}
    keys = {split: array("Q") for split in splits}
    with ExitStack() as opened:
        add = {split: opened.enter_context(writers[split].opened(folder / f"{split}.arrow", issues)) for split in splits}
        examples = surveyor.examples(rows([file.path], data, surveyor.issues, root))
        usable = (example for example in examples if surveyor.labels[-1] in (VALID, WITHHELD))
        batches = _with_split(in_batches(usable, row_schema(data)), file.source, data)
        for batch in progress(tokenizer.encode(batches), f"read and tokenise {file.title}"):
            for split in splits:
                chosen = batch.filter(pyarrow.compute.equal(batch[SPLIT], SPLITS.index(split)))
                add[split](chosen)
                keys[split].extend(chosen[KEYS].to_pylist())
    for split in splits:
        write_keys(folder, split, np.frombuffer(keys[split], np.uint64))
    surveyor.issues.merge(issues)
    states = np.frombuffer(surveyor.labels, np.int8)
    return {
        "source": file.source,
        "label_names": names,
        "rows": surveyor.rows,
        "labelled": int((states == VALID).sum()),
        "splits": {split: writer.facts() for split, writer in writers.items()},
        "tallies": {split: writer.tally.state() for split, writer in writers.items()},
        "odd": surveyor.issues.content(),
    }


def _with_split(batches: Iterator[pyarrow.RecordBatch], source: str, data: Data) -> Iterator[pyarrow.RecordBatch]:
    for batch in batches:
        texts = zip(*(batch[name].to_pylist() for name in data.text_columns), strict=True)
        keys = np.fromiter(map(text_key, texts), np.uint64, len(batch))
        batch = batch.append_column(KEYS, pyarrow.array(keys))
        yield batch.append_column(SPLIT, pyarrow.array(assign_by_key(keys, source, data)))


# --- Prepares the files of a shard, except those that were prepared before.


def prepare_parts(data: Data, files: dict[Path, RawFile], root: Path, tokenizer: Path, cores: int = 1) -> dict[str, Manifest]:
    """The part of each file by the file's title; `files`: by the folders of their parts; `tokenizer`: the folder of the fetched one."""
    parts = {file.title: part for folder, file in files.items() if (part := kept_part(folder))}
    missing = {folder: file for folder, file in files.items() if file.title not in parts}
    if parts:
        print(f"{len(parts)} of {len(files)} files were prepared before", flush=True)
    if not missing:
        return parts

    def make(opened: Tokenizer) -> dict[str, Manifest]:
        made: dict[str, Manifest] = {}
        try:
            for folder, file in missing.items():
                made[file.title] = make_part(folder, data, file, root, opened)
                print(f"{file.title}: {made[file.title].facts['rows']} rows", flush=True)
        except TokensDiffer:  # what was made with this tokenizer may not be used
            for part in made.values():
                shutil.rmtree(part.folder)
            raise
        return made

    with tempfile.TemporaryDirectory() as folder:
        copy_tokenizer(tokenizer, copied := Path(folder) / "tokenizer", data.pair)
        return parts | with_tokenizer(copied, data, cores, make)
