"""A module's weights in a folder: `<module>.safetensors`, or several files with an index, as Hugging Face's libraries write large models."""

import json
from pathlib import Path

from safetensors.torch import load_file, load_model
from torch import nn

INDEX = ".safetensors.index.json"


def load_weights(module: nn.Module, folder: Path, name: str) -> None:
    """Into a whole module. Of several files one at a time is in memory."""
    index = folder / f"{name}{INDEX}"
    if not index.is_file():
        load_model(module, folder / f"{name}.safetensors")
        return
    files: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    expected = set(module.state_dict()) - set(tied_names(module))
    if expected != set(files):
        raise SystemExit(
            f"{index}: names other tensors than the model has: {', '.join(sorted(expected ^ set(files))[:5])}. Select the checkpoint again."
        )
    for file in sorted(set(files.values())):
        module.load_state_dict(load_file(folder / file), strict=False)


def tied_names(module: nn.Module) -> dict[str, str]:
    """For each further name of a tied parameter, its first name."""
    first: dict[int, str] = {}
    tied = {}
    for name, tensor in sorted(module.named_parameters(remove_duplicate=False)):
        if id(tensor) in first:
            tied[name] = first[id(tensor)]
        first.setdefault(id(tensor), name)
    return tied
