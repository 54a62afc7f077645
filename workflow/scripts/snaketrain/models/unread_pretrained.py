"""transformers models whose pretrained weights stay in their files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from snaketrain.config.schema import LOADING_ARGUMENTS
from snaketrain.models.adapters import add_adapters
from snaketrain.models.unread import NeedsWholeModel, leave_unread, replace_parameters, shapes_in, weight_files
from snaketrain.runtime.json_types import JsonObject

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from snaketrain.models.pretrained import ModelClass

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
    keys = keys_by_name(module, files)
    initialize_others(module, keys)
    if adapters:
        keys = adapt(module, adapters, keys, not_loaded(found))
    leave_unread(module, files, keys)
    return module


def keys_by_name(module: "PreTrainedModel", files: list[Path]) -> dict[str, str]:
    """Where in the files each tensor of the module's state is, by the rules by which transformers renames them."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    state, rules = module.state_dict(), get_model_conversion_mapping(module)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    found: dict[str, str] = {}
    for key, shape in shapes_in(files).items():
        name, converted = rename_source_key(key, renamings, converters, module.base_model_prefix, state)
        if name not in state and key in state:
            name, converted = key, None
        if name not in state or (not converted and state[name].shape != shape):
            continue  # the model has no such tensor, or it is initialised anew: model.arguments.ignore_mismatched_sizes
        if converted or name in found:
            raise NeedsWholeModel(f"{key} is stored in another form than the model has it")
        found[name] = key
    if twice := [name for name, source in module.all_tied_weights_keys.items() if name in found and source in found]:
        raise NeedsWholeModel(f"{twice[0]} is tied, and is stored twice")
    return found


def not_loaded(found: JsonObject) -> list[str]:
    """The parameters that `from_pretrained` has initialised."""
    return [*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])]


def adapt(module: "PreTrainedModel", adapters: JsonObject, keys: dict[str, str], untrained: list[str]) -> dict[str, str]:
    """Add adapters; returns `keys` by the names that the pretrained parameters have then."""
    # with all but no memory, yet on the CPU: peft puts adapters on the device of what they adapt, and they are not to be on the meta device
    replace_parameters(module, lambda each: torch.zeros((), dtype=each.dtype).expand(each.shape) if each.is_meta else None)
    every = dict(module.named_parameters(remove_duplicate=False))
    held = {every[name]: key for name, key in keys.items() if name in every}
    add_adapters(module, adapters, untrained)
    renamed = {name: held[parameter] for name, parameter in module.named_parameters() if parameter in held}
    return renamed | {name: key for name, key in keys.items() if name not in every}


def initialize_others(module: "PreTrainedModel", keys: dict[str, str]) -> None:
    """Initialise the parameters and buffers that the files lack, as `from_pretrained` does: from the same random numbers."""
    every = dict(module.named_parameters(remove_duplicate=False))
    held = {every[name] for name in keys if name in every}

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
            setattr(made, INITIALIZED, f"{path}.{name}".lstrip(".") in keys)  # it is read later
            setattr(owner, name, made)
    module.initialize_weights()  # type: ignore[no-untyped-call]  # of transformers
