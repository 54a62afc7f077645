"""Weights that stay in their files until a strategy has sharded the module, so that no process ever holds the whole model.

Such a module has its parameters on the meta device, and knows which file holds each of them. Its buffers, which are small, are real.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from safetensors import safe_open
from torch import Tensor, nn

from snaketrain.config.schema import LOADING_ARGUMENTS
from snaketrain.models.adapters import add_adapters
from snaketrain.models.weight_files import INDEX, tied_names
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.core_model_loading import ConversionOps, WeightConverter

    from snaketrain.models.pretrained import ModelClass


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


# --- transformers models whose pretrained weights stay in their files.

HARMLESS = ("attn_implementation", "dtype", "torch_dtype", "experts_implementation", "ignore_mismatched_sizes")
INITIALIZED = "_is_hf_initialized"  # how transformers marks what is loaded or initialised


def unread_pretrained(cls: "ModelClass", folder: Path, given: JsonObject, adapters: JsonObject | None = None) -> nn.Module:
    """What `from_pretrained` returns, with adapters, but without the parameters in the files. The others have the same values."""
    from transformers import PreTrainedModel

    files = weight_files(folder, "model")
    if special := [name for name in given if name in LOADING_ARGUMENTS and name not in HARMLESS]:
        raise NeedsWholeModel(f"model.arguments.{special[0]} is set")
    if not files:
        raise NeedsWholeModel("they are not in safetensors files")
    if "quantization_config" in json.loads((folder / "config.json").read_text(encoding="utf-8")):
        raise NeedsWholeModel("they are quantized")
    if not (getattr(cls, "config_class", None) or getattr(cls, "_model_mapping", None)):
        raise NeedsWholeModel("the model is not one of transformers")
    # reads nothing but the headers of the files
    module, found = cls.from_pretrained(folder, device_map="meta", output_loading_info=True, **given)
    if not isinstance(module, PreTrainedModel) or module.is_custom_code():
        raise NeedsWholeModel("the model is not one of transformers")
    sources = sources_by_name(module, files)
    initialize_others(module, sources)
    if adapters:
        sources = adapt(module, adapters, sources, not_loaded(found))
    leave_unread(module, files, sources)
    return module


def sources_by_name(module: "PreTrainedModel", files: list[Path]) -> dict[str, Source]:
    """Where in the files each tensor of the module's state is, by the rules by which transformers renames them."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    state, rules = module.state_dict(), get_model_conversion_mapping(module)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    found, shapes = dict[str, Source](), shapes_in(files)
    of_experts: dict[str, dict[str, list[str]]] = {}  # the keys by name and pattern
    for key, shape in shapes.items():
        name, pattern = rename_source_key(key, renamings, converters, module.base_model_prefix, state)
        if name not in state and key in state:
            name, pattern = key, None
        if name not in state or (not pattern and state[name].shape != shape):
            continue  # the model has no such tensor, or it is initialised at random: model.arguments.ignore_mismatched_sizes
        if pattern:
            of_experts.setdefault(name, {}).setdefault(pattern, []).append(key)
        elif name in found:
            raise NeedsWholeModel(f"{key} is stored in another form than the model has it")
        else:
            found[name] = key
    for name, keys in of_experts.items():
        found[name] = stacked(name, keys, converters, {key: shapes[key] for each in keys.values() for key in each}, state[name].shape)
    if twice := [name for name, source in module.all_tied_weights_keys.items() if name in found and source in found]:
        raise NeedsWholeModel(f"{twice[0]} is tied, and is stored twice")
    return found


def stacked(
    name: str, keys: dict[str, list[str]], rules: list["WeightConverter"], shapes: dict[str, torch.Size], whole: torch.Size
) -> list[list[str]]:
    """For each expert the keys of its parts. `keys`: by the pattern of a part; `whole`: the shape of all experts."""
    patterns = next((rule.source_patterns for rule in rules if set(keys) <= {*rule.source_patterns} and stacks(rule.operations)), [])
    parts = [sorted(keys.get(pattern, []), key=lambda key: [int(number) for number in re.findall(r"\d+", key)]) for pattern in patterns]
    fitting = {torch.Size([whole[1] // max(1, len(parts)), *whole[2:]])}
    if not parts or any(len(part) != whole[0] for part in parts) or {*shapes.values()} != fitting:
        raise NeedsWholeModel(f"{next(iter(shapes))} is stored in another form than the model has it")
    return [list(expert) for expert in zip(*parts, strict=True)]


def stacks(operations: list["ConversionOps"]) -> bool:
    """Whether a conversion stacks the experts, and puts the rows of an expert's parts after each other, such as gate and up."""
    steps = [(type(each).__name__, getattr(each, "dim", None)) for each in operations]
    return steps in ([("MergeModulelist", 0)], [("MergeModulelist", 0), ("Concatenate", 1)])


def not_loaded(found: JsonObject) -> list[str]:
    """The parameters that `from_pretrained` has initialised."""
    return [*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])]


def adapt(module: "PreTrainedModel", adapters: JsonObject, sources: dict[str, Source], untrained: list[str]) -> dict[str, Source]:
    """Add adapters; returns `sources` by the names that the pretrained parameters have then."""
    # with all but no memory, yet on the CPU: peft puts adapters on the device of what they adapt, and they are not to be on the meta device
    replace_parameters(module, lambda each: torch.zeros((), dtype=each.dtype).expand(each.shape) if each.is_meta else None)
    every = dict(module.named_parameters(remove_duplicate=False))
    held = {every[name]: source for name, source in sources.items() if name in every}
    add_adapters(module, adapters, untrained)
    renamed = {name: held[parameter] for name, parameter in module.named_parameters() if parameter in held}
    return renamed | {name: source for name, source in sources.items() if name not in every}


def initialize_others(module: "PreTrainedModel", sources: dict[str, Source]) -> None:
    """Initialise the parameters and buffers that the files lack, as `from_pretrained` does: from the same random numbers."""
    every = dict(module.named_parameters(remove_duplicate=False))
    held = {every[name] for name in sources if name in every}

    def empty(parameter: nn.Parameter) -> Tensor | None:
        if parameter in held:
            return None
        if getattr(parameter, INITIALIZED, False):
            name = next(name for name, each in every.items() if each is parameter)
            raise NeedsWholeModel(f"{name} is stored in another form than the model has it")
        return torch.empty_like(parameter, device="cpu")

    replace_parameters(module, empty)
    for path, owner in module.named_modules():
        owner.__dict__.pop(INITIALIZED, None)
        for name, buffer in list(owner.named_buffers(recurse=False)):
            made = torch.empty_like(buffer, device="cpu")
            setattr(made, INITIALIZED, f"{path}.{name}".lstrip(".") in sources)  # it is read later
            setattr(owner, name, made)
    module.initialize_weights()  # type: ignore[no-untyped-call]  # of transformers
