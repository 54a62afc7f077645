"""A module's weights in a folder: `<module>.safetensors`, or several files with an index, as Hugging Face's libraries write large models."""

import json
from pathlib import Path

from safetensors.torch import load_file, load_model, save_file
from torch import Tensor, nn

INDEX = ".safetensors.index.json"
MOST_BYTES = 5 * 10**9  # of a file, as in transformers


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


def read_weights(folder: Path, name: str) -> dict[str, Tensor]:
    """All tensors of a module, from one file or several."""
    index = folder / f"{name}{INDEX}"
    files = {f"{name}.safetensors"}
    if index.is_file():
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return {key: tensor for file in sorted(files) for key, tensor in load_file(folder / file).items()}


def save_weights(module: nn.Module, folder: Path, name: str, most_bytes: int = MOST_BYTES) -> None:
    """The inverse of `load_weights`."""
    tied = tied_names(module)
    tensors = {key: tensor.contiguous() for key, tensor in module.state_dict().items() if key not in tied}
    layout = files_of(name, {key: tensor.nbytes for key, tensor in tensors.items()}, most_bytes)
    for file, keys in layout.items():
        save_file({key: tensors[key] for key in keys}, folder / file, metadata={"format": "pt"})
    write_index(name, layout, sum(tensor.nbytes for tensor in tensors.values()), folder)


def files_of(name: str, sizes: dict[str, int], most_bytes: int) -> dict[str, list[str]]:
    """The tensors in each file: in their order, no file larger than allowed unless one tensor is."""
    groups: list[list[str]] = [[]]
    size = 0
    for key, bytes_of_it in sizes.items():
        if groups[-1] and size + bytes_of_it > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(key)
        size += bytes_of_it
    if len(groups) == 1:
        return {f"{name}.safetensors": groups[0]}
    return {f"{name}-{number:05d}-of-{len(groups):05d}.safetensors": keys for number, keys in enumerate(groups, start=1)}


def write_index(name: str, layout: dict[str, list[str]], total_bytes: int, folder: Path) -> None:
    """Beside several files, which of them holds which tensor; nothing beside one."""
    if len(layout) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": {key: file for file, keys in layout.items() for key in keys}}
        (folder / f"{name}{INDEX}").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
