"""The model of a plan: built from its configuration alone, without its weights, and if it is deep, with only some of its blocks."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from snaketrain.checking.data import NotPlannable
from snaketrain.config.references import load
from snaketrain.config.schema import LOADING_ARGUMENTS, Model, Settings
from snaketrain.models.adapters import add_adapters
from snaketrain.runtime.strict_json import JsonObject

NOT_FIELDS = ("model_type", "transformers_version", "architectures", "dtype", "torch_dtype", "_name_or_path", "auto_map")
SET_BY_DATA = ("id2label", "label2id", "num_labels", "problem_type")
ALLOCATED = ("dtype", "torch_dtype")  # loading arguments by which parameters take other memory


@dataclass(frozen=True)
class PlannedModel:
    settings: Model  # without weights
    weights: Path | None = None  # where their files are
    dtype: torch.dtype | None = None  # in which they are loaded


def planned_model(run: Settings, folder: Path | None) -> PlannedModel:
    """`folder`: of the pretrained weights, of which only the configuration and names are read."""
    model = run.model
    if model.source is None or folder is None:
        return PlannedModel(model.model_copy(update={"initial_weights": None}))
    if "quantization_config" in model.arguments:
        raise NotPlannable("model.arguments.quantization_config: quantized weights cannot be planned")
    described = next(iter(sorted(folder.rglob("config.json"), key=lambda path: len(path.parts))), None)
    if described is None:
        raise NotPlannable(f"model.source: {folder} has no config.json")
    given = {
        name: value
        for name, value in model.arguments.items()
        if name not in (*ALLOCATED, *LOADING_ARGUMENTS) or name == "attn_implementation"
    }
    use, fields = _published(model.use, described.parent)
    dtype = next((getattr(torch, str(model.arguments[name])) for name in ALLOCATED if name in model.arguments), None)
    return PlannedModel(Model(use=use, arguments=fields | given), described.parent, dtype)


def _published(use: str, folder: Path) -> tuple[str, JsonObject]:
    """The class that loads the weights in a folder, and the fields in which their configuration differs from its defaults."""
    from transformers import AutoConfig

    cls = load(use)
    config = (getattr(cls, "config_class", None) or AutoConfig).from_pretrained(folder, local_files_only=True)
    if mapping := getattr(cls, "_model_mapping", None):  # of an Auto class
        if type(config) not in mapping:
            raise NotPlannable(f"model.use: {use} has no class for {type(config).__name__}")
        found = mapping[type(config)]
        cls = found[0] if isinstance(found, tuple) else found
        use = f"transformers.{cls.__name__}"
    known = {name for name in dir(type(config)()) if not name.startswith("_")}  # old files have fields that there are no longer
    fields = {name: value for name, value in config.to_diff_dict().items() if name in known and name not in (*NOT_FIELDS, *SET_BY_DATA)}
    return use, fields


def adapt(module: nn.Module, run: Settings, planned: PlannedModel) -> nn.Module:
    """What `from_pretrained` would do besides building: adapters, and the precision of the weights."""
    if planned.dtype is not None:
        module = module.to(planned.dtype)
    if run.model.adapters:
        add_adapters(module, run.model.adapters.model_dump(), _not_in_files(module, planned.weights))
    return module


def _not_in_files(module: nn.Module, folder: Path | None) -> list[str]:
    """Parameters that the weights lack, such as those of a new head. Files may leave out the name of the base model."""
    names: set[str] = set()
    for file in sorted(folder.glob("*.safetensors")) if folder else ():
        with safe_open(file, framework="pt") as opened:
            names |= set(opened.keys())
    prefix = f"{getattr(module, 'base_model_prefix', '')}."
    known = names | {prefix + name for name in names} | {name.removeprefix(prefix) for name in names}
    return [name for name, _ in module.named_parameters() if name not in known] if names else []


# --- depth


def depth_of(modules: dict[str, nn.Module]) -> int | None:
    """How many equal blocks the modules have; None where they have none, or lists of different ones or of different lengths."""
    lists = [found for module in modules.values() for found in block_lists(module)]
    depths = {len(found) for found in lists}
    alike = all(_shapes(block) == _shapes(found[0]) for found in lists for block in found)
    kinds = {kind for module in modules.values() for kind in getattr(getattr(module, "config", None), "layer_types", None) or ()}
    return depths.pop() if len(depths) == 1 and alike and len(kinds) <= 1 else None


def cut(modules: dict[str, nn.Module], depth: int) -> None:
    """Keep only the first blocks."""
    for module in modules.values():
        for found in block_lists(module):
            del found[depth:]
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "num_hidden_layers"):
            config.num_hidden_layers = depth


def block_lists(module: nn.Module) -> list[nn.ModuleList]:
    """The outermost lists of modules with parameters, whose entries are what `models.blocks.blocks` returns."""
    if isinstance(module, nn.ModuleList) and len(module) > 1:
        return [module] if any(True for _ in module.parameters()) else []
    return [found for child in module.children() for found in block_lists(child)]


def _shapes(block: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, parameter.shape) for name, parameter in block.named_parameters()]
