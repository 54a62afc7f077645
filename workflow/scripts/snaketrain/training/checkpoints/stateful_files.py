"""Everything a checkpoint holds besides modules and optimizers: one small file, written by rank 0, for each `Stateful`."""

from pathlib import Path

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from snaketrain.training.checkpoints.snapshot import Snapshot
from snaketrain.training.state import Stateful


def collect(stateful: dict[str, Stateful], snapshot: Snapshot, writes: bool) -> dict[str, object]:
    """File names with copies of the contents, on the rank that writes them. All ranks take part: some gather what the ranks hold."""
    saved = {f"{name}.memory.pt": part.state_dict() for name, part in stateful.items()}
    return {name: tree_map_only(Tensor, snapshot.keep, content) for name, content in saved.items()} if writes else {}


def restore(stateful: dict[str, Stateful], folder: Path) -> None:
    for name, part in stateful.items():
        if (folder / f"{name}.memory.pt").is_file():  # older code may have saved other parts
            part.load_state_dict(torch.load(folder / f"{name}.memory.pt", weights_only=True))
