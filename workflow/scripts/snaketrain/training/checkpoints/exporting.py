"""From a sharded checkpoint to safetensors files, without a process group, and with one file's tensors in memory at a time."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from snaketrain.models.weights import MOST_BYTES, files_of, write_index
from snaketrain.training.checkpoints.rank_state import empty, fill, stored
from snaketrain.training.checkpoints.ranking import AVERAGES, WEIGHTS, exported_files, is_sharded


def export_weights(checkpoint: Path, folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """A module that fits into one file becomes `<module>.safetensors`, a larger one `<module>-00001-of-00002.safetensors` ... and an index."""
    modules: dict[str, dict[str, TensorStorageMetadata]] = {}
    for full, each in sorted(stored(checkpoint / WEIGHTS).items()):
        module, _, name = full.partition(".")
        assert each, f"{full}: weights are tensors"
        modules.setdefault(module, {})[name] = each
    for module, tensors in modules.items():
        sizes = {name: each.size.numel() * each.properties.dtype.itemsize for name, each in tensors.items()}
        layout = files_of(module, sizes, most_bytes)
        for file, names in layout.filename_to_tensors.items():
            write_file(checkpoint, module, {name: tensors[name] for name in names}, folder / file)
        write_index(module, layout, folder)


def write_file(checkpoint: Path, module: str, tensors: dict[str, TensorStorageMetadata], file: Path) -> None:
    content: dict[str, Tensor] = {}
    averaged = stored(checkpoint / AVERAGES, module) if (checkpoint / AVERAGES).is_dir() else {}
    for name, each in tensors.items():  # one by one, since reading keeps whole shards in memory
        content |= fill(checkpoint / (AVERAGES if name in averaged else WEIGHTS), module, empty({name: each}))
    save_file(content, file, metadata={"format": "pt"})


# --- The average of the weights of several checkpoints, whose files are mapped into memory.


def average_checkpoints(checkpoints: list[Path], folder: Path) -> None:
    """Write the average as the weights of one checkpoint would be; whole numbers, such as counters, are those of the first."""
    with TemporaryDirectory(dir=folder) as temporary:
        folders = [whole(checkpoint, Path(temporary, str(number))) for number, checkpoint in enumerate(checkpoints)]
        files = [exported_files(each) for each in folders]
        for name in files[0]:
            average_files([each[name] for each in files], folder / name)
        for path in folders[0].glob("*.safetensors.index.json"):
            shutil.copyfile(path, folder / path.name)


def whole(checkpoint: Path, room: Path) -> Path:
    """The folder of a checkpoint's safetensors files."""
    if not is_sharded(checkpoint):
        return checkpoint
    room.mkdir()
    export_weights(checkpoint, room)
    return room


def average_files(files: list[Path], to: Path) -> None:
    opened = [load_file(file) for file in files]  # memory-mapped
    save_file({name: mean([tensors[name] for tensors in opened]) for name in opened[0]}, to, metadata={"format": "pt"})


def mean(tensors: list[Tensor]) -> Tensor:
    first = tensors[0]
    return torch.stack([tensor.double() for tensor in tensors]).mean(0).to(first.dtype) if first.is_floating_point() else first
