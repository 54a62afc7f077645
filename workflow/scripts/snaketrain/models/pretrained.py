"""Creates transformers models, from pretrained weights or randomly initialised, and writes their configuration."""

import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from snaketrain.config.errors import nearest
from snaketrain.config.references import load
from snaketrain.config.schema import LOADING_ARGUMENTS
from snaketrain.models.adapters import add_adapters
from snaketrain.models.weights import NeedsWholeModel, Source, leave_unread, replace_parameters, shapes_in, weight_files
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel
    from transformers.core_model_loading import ConversionOps, WeightConverter


class ModelClass(Protocol):
    """A model class of transformers; other classes have only the first method."""

    def __call__(self, *configs: object, **arguments: object) -> nn.Module: ...
    def from_pretrained(self, folder: Path, **arguments: object) -> Any: ...  # a module, and what its files lack where that is asked for
    def from_config(self, config: object) -> nn.Module: ...


def make_model(model: JsonObject, folder: Path | None, always: JsonObject, at_random: JsonObject) -> nn.Module:
    """The model of the `model` section. The task sets the fields `always` of its configuration, and `at_random` if there are no pretrained weights."""
    cls: ModelClass = load(model["use"])
    if folder is not None:
        check_fields(read_config(cls, folder), model["arguments"])
        # full precision, even if the weights were published in half precision: small updates would be lost
        given = {"local_files_only": True, "dtype": torch.float32} | always | model["arguments"]
        if model.get("unread"):
            return unread_pretrained(cls, folder, given, model.get("adapters"))
        if not model.get("adapters"):
            return cls.from_pretrained(folder, **given)
        module, found = cls.from_pretrained(folder, output_loading_info=True, **given)
        add_adapters(module, model["adapters"], not_loaded(found))  # which trains what the files lack as well, such as a new head
        return module
    config_class = getattr(cls, "config_class", None)
    if config_class is None:
        raise SystemExit(
            f"model.use: {model['use']} cannot be initialised randomly. Name a class such as transformers.BertForSequenceClassification, or give model.source."
        )
    check_fields(config_class(**always), model["arguments"])
    return cls(config_class(**(at_random | always | model["arguments"])))


def read_config(cls: ModelClass, folder: Path) -> "PretrainedConfig":
    """The config.json beside pretrained weights."""
    from transformers import AutoConfig  # here: tasks with other models need not wait for transformers

    return (getattr(cls, "config_class", None) or AutoConfig).from_pretrained(folder, local_files_only=True)


def check_fields(config: "PretrainedConfig", arguments: JsonObject) -> None:
    """Refuse unknown fields, which transformers would keep without any effect."""
    known = fields_of(config)
    for name in arguments:
        if name not in known:
            raise SystemExit(f"model.arguments.{name}: {type(config).__name__} has no such field{nearest(name, known)}")


def fields_of(config: "PretrainedConfig") -> set[str]:
    return {name for name in dir(config) if not name.startswith("_")} | {*config.attribute_map, *LOADING_ARGUMENTS}


def describe_model(model: nn.Module, folder: Path) -> None:
    """Write the model's config.json, so that `from_pretrained` can load the trained weights, and its generation_config.json."""
    config, generation = getattr(model, "config", None), getattr(model, "generation_config", None)
    if config is not None:
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
    if generation is not None:
        try:
            generation.save_pretrained(folder)
        except ValueError as error:  # some published ones contradict themselves, which transformers refuses to write
            logging.warning("generation_config.json is not written, so set its options when you use the model: %s", error)


# --- transformers models whose pretrained weights stay in their files.

HARMLESS = ("attn_implementation", "dtype", "torch_dtype", "experts_implementation", "ignore_mismatched_sizes")
INITIALIZED = "_is_hf_initialized"  # how transformers marks what is loaded or initialised


def unread_pretrained(cls: ModelClass, folder: Path, given: JsonObject, adapters: JsonObject | None = None) -> nn.Module:
    """What `from_pretrained` returns, with adapters, but without the parameters in the files. The others have the same values."""
    from transformers import PreTrainedModel

    files = weight_files(folder, "model")
    if special := [name for name in given if name in LOADING_ARGUMENTS and name not in HARMLESS]:
        raise NeedsWholeModel(f"model.arguments.{special[0]} is set")
    if adapters and adapters.get("quantize"):
        raise NeedsWholeModel("model.adapters.quantize is set")
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
