"""The parts that the shards have made."""

import shutil
from itertools import zip_longest
from pathlib import Path

from snaketrain.data.sharded.dealing import RawFile
from snaketrain.data.text.splitting import SPLITS
from snaketrain.runtime.manifests import Manifest, read_manifest

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
