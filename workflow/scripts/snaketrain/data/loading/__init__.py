"""Prepared data as batches. Here, without torch: the files of prepared texts, one for each split, or one for each part of it."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow

from snaketrain.runtime.manifests import Manifest


def split_files(prepared: Manifest, split: str) -> list[Path]:
    """In the order of their examples."""
    parts = [name for name in prepared.files if name.endswith(f"/{split}.arrow")]
    return [prepared.file(name) for name in parts or [f"{split}.arrow"]]


def open_table(files: Sequence[str | Path]) -> pyarrow.Table:
    """Memory-mapped: nothing is read before it is asked for."""
    return pyarrow.concat_tables([pyarrow.ipc.open_file(pyarrow.memory_map(str(file))).read_all() for file in files])
