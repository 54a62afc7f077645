"""From a sharded checkpoint to safetensors files, without a process group, and with one file's tensors in memory at a time."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from snaketrain.models.weight_files import INDEX
from snaketrain.training.checkpoints.sharded import WEIGHTS

MOST_BYTES = 5 * 10**9  # of a file, as in transformers


def export_weights(checkpoint: Path, folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """A module that fits into one file becomes `<module>.safetensors`, a larger one `<module>-00001-of-00002.safetensors` ... and an index."""
    stored = FileSystemReader(checkpoint / WEIGHTS).read_metadata().state_dict_metadata
    modules: dict[str, dict[str, TensorStorageMetadata]] = {}
    for full, each in sorted(stored.items()):
        module, _, name = full.partition(".")
        assert isinstance(each, TensorStorageMetadata), full  # weights are tensors
        modules.setdefault(module, {})[name] = each
    for module, tensors in modules.items():
        sizes = {name: each.size.numel() * each.properties.dtype.itemsize for name, each in tensors.items()}
        groups = split(sizes, most_bytes)
        weight_map: dict[str, str] = {}
        for number, names in enumerate(groups, start=1):
            file = f"{module}.safetensors" if len(groups) == 1 else f"{module}-{number:05d}-of-{len(groups):05d}.safetensors"
            write_file(checkpoint, module, {name: tensors[name] for name in names}, folder / file)
            weight_map |= dict.fromkeys(names, file)
        if len(groups) > 1:
            index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
            (folder / f"{module}{INDEX}").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def split(sizes: dict[str, int], most_bytes: int) -> list[list[str]]:
    """Groups of names in their order, none larger than allowed unless one tensor is."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, bytes_of_it in sizes.items():
        if groups[-1] and size + bytes_of_it > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += bytes_of_it
    return groups


def write_file(checkpoint: Path, module: str, tensors: dict[str, TensorStorageMetadata], file: Path) -> None:
    content = {}
    for name, each in tensors.items():  # one by one, since reading keeps whole shards in memory
        room = {f"{module}.{name}": torch.empty(each.size, dtype=each.properties.dtype)}
        load(room, storage_reader=FileSystemReader(checkpoint / WEIGHTS), no_dist=True)
        content[name] = room[f"{module}.{name}"]
    save_file(content, file, metadata={"format": "pt"})
