"""Prepares the files of a shard, except those that were prepared before."""

import shutil
import tempfile
from pathlib import Path

from snaketrain.config.schema import Data
from snaketrain.data.sharded.dealing import RawFile
from snaketrain.data.sharded.parts import kept_part, make_part
from snaketrain.data.tokenization.files import copy_tokenizer
from snaketrain.data.tokenization.opening import with_tokenizer
from snaketrain.data.tokenization.tokenizer import Tokenizer, TokensDiffer
from snaketrain.runtime.manifests import Manifest


def prepare_parts(
    data: Data, files: dict[Path, RawFile], root: Path, tokenizer: Path, found_classes: list[str], cores: int = 1
) -> dict[str, Manifest]:
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
                made[file.title] = make_part(folder, data, file, root, opened, found_classes)
                print(f"{file.title}: {made[file.title].facts['rows']} rows", flush=True)
        except TokensDiffer:  # what was made with this tokenizer may not be used
            for part in made.values():
                shutil.rmtree(part.folder)
            raise
        return made

    with tempfile.TemporaryDirectory() as folder:
        copy_tokenizer(tokenizer, copied := Path(folder) / "tokenizer", data.pair)
        return parts | with_tokenizer(copied, data, cores, make)
