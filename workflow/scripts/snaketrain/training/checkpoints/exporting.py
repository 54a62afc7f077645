"""From a sharded checkpoint to safetensors files, without a process group, and with one file's tensors in memory at a time."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import STORAGE_TYPES, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from snaketrain.models.weight_files import MOST_BYTES, files_of, write_index
from snaketrain.training.checkpoints.sharded import AVERAGES, WEIGHTS


def export_weights(checkpoint: Path, folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """A module that fits into one file becomes `<module>.safetensors`, a larger one `<module>-00001-of-00002.safetensors` ... and an index."""
    stored = stored_in(checkpoint / WEIGHTS)
    modules: dict[str, dict[str, TensorStorageMetadata]] = {}
    for full, each in sorted(stored.items()):
        module, _, name = full.partition(".")
        assert isinstance(each, TensorStorageMetadata), full  # weights are tensors
        modules.setdefault(module, {})[name] = each
    for module, tensors in modules.items():
        sizes = {name: each.size.numel() * each.properties.dtype.itemsize for name, each in tensors.items()}
        layout = files_of(module, sizes, most_bytes)
        for file, names in layout.items():
            write_file(checkpoint, module, {name: tensors[name] for name in names}, folder / file)
        write_index(module, layout, sum(sizes.values()), folder)


def stored_in(folder: Path) -> dict[str, STORAGE_TYPES]:
    return FileSystemReader(folder).read_metadata().state_dict_metadata


def write_file(checkpoint: Path, module: str, tensors: dict[str, TensorStorageMetadata], file: Path) -> None:
    content, averaged = {}, stored_in(checkpoint / AVERAGES) if (checkpoint / AVERAGES).is_dir() else {}
    for name, each in tensors.items():  # one by one, since reading keeps whole shards in memory
        room = {f"{module}.{name}": torch.empty(each.size, dtype=each.properties.dtype)}
        part = AVERAGES if f"{module}.{name}" in averaged else WEIGHTS
        load(room, storage_reader=FileSystemReader(checkpoint / part), no_dist=True)
        content[name] = room[f"{module}.{name}"]
    save_file(content, file, metadata={"format": "pt"})
