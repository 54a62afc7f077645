"""Where a module's weights are: in files, in memory, or nowhere yet.

In a folder they are `<module>.safetensors`, or several files with an index, as Hugging Face's libraries write large models.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from huggingface_hub import StateDictSplit, split_state_dict_into_shards_factory
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

INDEX = ".safetensors.index.json"
MOST_BYTES = 5 * 10**9  # of a file, as in transformers


def load_weights(module: nn.Module, folder: Path, name: str) -> None:
    """Into a whole module. Of several files one at a time is in memory."""
    files = weight_files(folder, name)
    if len(files) < 2:
        load_model(module, folder / f"{name}.safetensors")
        return
    refuse_other_tensors(module, files, folder / name)
    for file in files:
        module.load_state_dict(load_file(file), strict=False)


def refuse_other_tensors(module: nn.Module, files: list[Path], what: Path) -> None:
    """Exit with a message if the files have other tensors than the module."""
    tied = tied_names(module)
    held = {tied.get(key, key): shape for key, shape in shapes_in(files).items()}
    expected = {tied.get(key, key): tensor.shape for key, tensor in module.state_dict().items()}
    if different := [key for key in sorted(held.keys() | expected.keys()) if held.get(key) != expected.get(key)]:
        raise SystemExit(f"{what}: other tensors than the model has: {', '.join(different[:5])}. Select the checkpoint again.")


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
    files = weight_files(folder, name) or [folder / f"{name}.safetensors"]
    return {key: tensor for file in files for key, tensor in load_file(file).items()}


def save_weights(module: nn.Module, folder: Path, name: str, most_bytes: int = MOST_BYTES) -> None:
    """The inverse of `load_weights`."""
    tied = tied_names(module)
    tensors = {key: tensor.contiguous() for key, tensor in module.state_dict().items() if key not in tied}
    layout = files_of(name, {key: tensor.nbytes for key, tensor in tensors.items()}, most_bytes)
    for file, keys in layout.filename_to_tensors.items():
        save_file({key: tensors[key] for key in keys}, folder / file, metadata={"format": "pt"})
    write_index(name, layout, folder)


def files_of(name: str, sizes: dict[str, int], most_bytes: int) -> StateDictSplit:
    """The tensors in each file: in their order, no file larger than allowed unless one tensor is. `sizes`: in bytes."""
    pattern = f"{name}{{suffix}}.safetensors"
    return split_state_dict_into_shards_factory(sizes, get_storage_size=int, filename_pattern=pattern, max_shard_size=most_bytes)


def write_index(name: str, layout: StateDictSplit, folder: Path) -> None:
    """Beside several files, which of them holds which tensor; nothing beside one."""
    if layout.is_sharded:
        index = {"metadata": layout.metadata, "weight_map": layout.tensor_to_filename}
        (folder / f"{name}{INDEX}").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


# --- Parameters on the meta device, on ranks that will receive their shards from another rank.


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Modules built within have parameters on the meta device; their buffers, which are small and often not saved, are real."""

    def without(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
        return parameter if parameter.is_meta else nn.Parameter(parameter.to("meta"), parameter.requires_grad)  # tied parameters stay tied

    hook = register_module_parameter_registration_hook(without)  # type: ignore[arg-type]  # torch's annotation lacks the return value
    try:
        yield
    finally:
        hook.remove()


def has_memory(module: nn.Module) -> bool:
    return not any(parameter.is_meta for parameter in module.parameters())


def give_memory(module: nn.Module, parameters: torch.device, buffers: torch.device) -> None:
    """Allocate a module's parameters, or this rank's shards of them, without initialising them."""
    kept = [(owner, name, buffer) for owner in module.modules() for name, buffer in owner.named_buffers(recurse=False)]
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # otherwise tied parameters would be allocated separately
    try:
        module.to_empty(device=parameters)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)
    for owner, name, buffer in kept:
        setattr(owner, name, buffer.to(buffers))


# --- Weights that stay in their files until a strategy has sharded the module, so that no process ever holds the whole model.
#
# Such a module has its parameters on the meta device, and knows which file holds each of them. Its buffers, which are small, are real.

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
    return getattr(module, ATTRIBUTE, None)


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
    refuse_other_tensors(module, files, folder / name)
    leave_unread(module, files, {key: key for key in shapes_in(files)})
