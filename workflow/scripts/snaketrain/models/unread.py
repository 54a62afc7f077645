"""Weights that stay in their files until a strategy has sharded the module, so that no process ever holds the whole model.

Such a module has its parameters on the meta device, and knows which file holds each of them. Its buffers, which are small, are real.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import safe_open
from torch import Tensor, nn

from snaketrain.models.weight_files import INDEX, tied_names

ATTRIBUTE = "unread_weights"
# Where a tensor is in the files: its key, or if it is stacked from a tensor for each expert, for each expert the keys of its parts,
# which are its rows one after the other
Source: TypeAlias = str | list[list[str]]


class NeedsWholeModel(Exception):
    """Says why a module cannot be made without its weights."""


@dataclass(frozen=True)
class UnreadWeights:
    files: list[Path]
    sources: dict[str, Source]  # of the parameters, by their names in the module
    initialized: dict[str, Tensor]  # the parameters that the files lack


def unread_weights(module: nn.Module) -> UnreadWeights | None:
    """None: the module is an ordinary one, or another rank sends its weights."""
    found: UnreadWeights | None = getattr(module, ATTRIBUTE, None)
    return found


def weight_files(folder: Path, name: str) -> list[Path]:
    """The files that hold a module's weights, as transformers chooses them; none: they are in another format."""
    if (single := folder / f"{name}.safetensors").is_file():
        return [single]
    index = folder / f"{name}{INDEX}"
    found = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.is_file() else {}
    return [folder / file for file in sorted(set(found.values()))]


def shapes_in(files: list[Path]) -> dict[str, torch.Size]:
    """The shapes of the tensors in the files, from the files' headers."""
    found: dict[str, torch.Size] = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            found |= {key: torch.Size(opened.get_slice(key).get_shape()) for key in opened.keys()}  # noqa: SIM118 - it is not a dict
    return found


def leave_unread(module: nn.Module, files: list[Path], sources: Mapping[str, Source]) -> None:
    """Take the memory of the parameters, and read the buffers. `sources`: by the name in the module's state."""
    every = dict(module.named_parameters(remove_duplicate=False))
    held = {every[name] for name in sources if name in every}
    initialized = {name: parameter.detach() for name, parameter in module.named_parameters() if parameter not in held}
    replace_parameters(module, lambda parameter: None if parameter.is_meta else parameter.to("meta"))
    _read_buffers(module, files, {key: name for name, key in sources.items() if name not in every and isinstance(key, str)})
    unread = UnreadWeights(files, {name: source for name, source in sources.items() if name in every}, initialized)
    object.__setattr__(module, ATTRIBUTE, unread)


def replace_parameters(module: nn.Module, replacement: Callable[[nn.Parameter], Tensor | None]) -> None:
    """Put other parameters in place; tied ones stay tied. None: this one stays."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for owner in module.modules():
        for name, parameter in list(owner.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter not in made:
                tensor = replacement(parameter)
                made[parameter] = parameter if tensor is None else nn.Parameter(tensor, parameter.requires_grad)
            setattr(owner, name, made[parameter])


def _read_buffers(module: nn.Module, files: list[Path], names: dict[str, str]) -> None:
    buffers = dict(module.named_buffers())
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for key in names.keys() & set(opened.keys()):
                buffers[names[key]].copy_(opened.get_tensor(key))


def leave_trained_unread(module: nn.Module, folder: Path, name: str) -> None:
    """The same for all weights of a module, which are in a folder that `select_checkpoint` or a training wrote."""
    files = weight_files(folder, name)
    found, tied = shapes_in(files), tied_names(module)
    held = {tied.get(key, key): shape for key, shape in found.items()}
    expected = {tied.get(key, key): tensor.shape for key, tensor in module.state_dict().items()}
    if different := [key for key in sorted(held.keys() | expected.keys()) if held.get(key) != expected.get(key)]:
        raise SystemExit(f"{folder / name}: other tensors than the model has: {', '.join(different[:5])}. Select the checkpoint again.")
    leave_unread(module, files, {key: key for key in found})
