"""The average of the weights of several checkpoints, whose files are mapped into memory."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from snaketrain.training.checkpoints.exported import exported_files
from snaketrain.training.checkpoints.exporting import export_weights
from snaketrain.training.checkpoints.formats import is_sharded


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
