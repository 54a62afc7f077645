"""The parts that the shards have made."""

import shutil
from pathlib import Path

from snaketrain.data.sharded.dealing import RawFile
from snaketrain.data.text.splitting import SPLITS
from snaketrain.runtime.manifests import Manifest, read_manifest

ARROW = tuple(f"{split}.arrow" for split in SPLITS)


def parts_of(files: list[RawFile], shards: list[Manifest], output: Path) -> list[Manifest]:
    """The part of each file, in the order of the files."""
    keys = {file: key for shard in shards for file, key in shard.facts["parts"].items()}
    if missing := [file.title for file in files if file.title not in keys]:
        raise ValueError(f"{missing[0]} is in none of the {len(shards)} shards. Start snakemake again: it prepares them again.")
    return [read_manifest(output / "parts" / keys[file.title] / "manifest.json") for file in files]


def remove_others(output: Path, parts: list[Manifest], shards: list[Manifest]) -> None:
    """Remove the parts of earlier files, settings and code, and the shards of another number of them."""
    kept = {part.folder.name for part in parts} | {shard.folder.name for shard in shards}
    for folder in [*(output / "parts").iterdir(), *(output / "shards").iterdir(), *(output / "surveys").glob("*")]:
        if folder.is_dir() and folder.name not in kept:
            shutil.rmtree(folder)
