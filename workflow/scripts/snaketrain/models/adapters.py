"""Adapters: small matrices that are trained beside those of a pretrained model, which stay as they are. The layers are peft's.

Checkpoints hold what is trained, under the names that it has in the model; `to_peft` gives it the names of peft's files.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from snaketrain.config.errors import nearest
from snaketrain.models.quantized import quantizable, quantize_layers, round_layers
from snaketrain.models.weights import tied_names
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    from peft import LoraConfig

NAME = "default"  # of an adapter, where peft needs one
TASK_TYPES = {"ForSequenceClassification": "SEQ_CLS", "ForCausalLM": "CAUSAL_LM", "ForConditionalGeneration": "SEQ_2_SEQ_LM"}


def add_adapters(module: nn.Module, adapters: JsonObject, untrained: Iterable[str]) -> None:
    """Freeze the module, insert adapters, and train these, `modules_to_save`, and the parameters that pretrained weights lack."""
    from peft import LoraConfig, inject_adapter_in_model

    targets, heads = adapters["target_modules"], [*adapters["modules_to_save"], *owners(untrained)]
    for target in targets if isinstance(targets, list) else ():  # of several, peft would leave out those that match nothing
        matching(module, target, "target_modules")
    trained = [part for head in heads for part in matching(module, head, "modules_to_save")]
    if adapters.get("quantize"):
        quantize_layers(module, quantizable(module, trained))
    options = {name: value for name, value in adapters.items() if name not in ("quantize", "modules_to_save")}
    config = LoraConfig(task_type=task_type(module), **options)
    try:
        inject_adapter_in_model(config, module, NAME)
    except ValueError as error:  # such as targets that match nothing
        raise SystemExit(f"model.adapters: {error}") from None
    for part in trained:
        part.requires_grad_(True)
    config.modules_to_save = list(dict.fromkeys(heads)) or None
    check_tied(module)
    sizes = {parameter: parameter.numel() for parameter in module.parameters()}
    learnt = sum(size for parameter, size in sizes.items() if parameter.requires_grad)
    logging.info(
        "adapters: %s of %s parameters are trained; heads: %s", f"{learnt:,}", f"{sum(sizes.values()):,}", ", ".join(heads) or "none"
    )


def owners(parameters: Iterable[str]) -> list[str]:
    """The modules that parameters belong to, by their full names."""
    found = list(dict.fromkeys(name.rpartition(".")[0] for name in sorted(parameters)))
    if "" in found:
        raise SystemExit(
            "model.adapters: the pretrained weights lack a parameter of the model itself, which peft cannot save as a module. Train without adapters, or name other weights."
        )
    return found


def matching(module: nn.Module, wanted: str, setting: str) -> list[nn.Module]:
    """The modules that a name means to peft: its own, or those whose names end in it."""
    named = dict(module.named_modules())
    if found := [part for name, part in named.items() if name == wanted or name.endswith(f".{wanted}")]:
        return found
    ends = {name.split(".", start)[-1] for name in named for start in range(name.count(".") + 1)}
    raise SystemExit(f"model.adapters.{setting}: the model has no module '{wanted}'{nearest(wanted, sorted(ends))}")


def task_type(module: nn.Module) -> str | None:
    """By which peft chooses its class when the adapters are loaded."""
    return next((kind for ending, kind in TASK_TYPES.items() if type(module).__name__.endswith(ending)), None)


def check_tied(module: nn.Module) -> None:
    """Refuse tied weights: training or merging one would change the other as well."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name, first in tied_names(module).items():
        if parameters[name].requires_grad or ".base_layer." in f"{name} {first}":
            raise SystemExit(f"model.adapters: {name} shares its weights with {first}; adapt and train other modules.")


def as_trained(module: nn.Module, adapters: JsonObject, heads: Iterable[str]) -> None:
    """Give a module without adapters the weights beside which they were trained."""
    if adapters.get("quantize"):
        round_layers(module, quantizable(module, [part for head in heads for part in matching(module, head, "modules_to_save")]))


def config_of(module: nn.Module) -> "LoraConfig | None":
    """None for a module without adapters."""
    configs: dict[str, LoraConfig] = getattr(module, "peft_config", {})
    return configs.get(NAME)


def frozen_names(module: nn.Module) -> set[str]:
    """The pretrained parameters of an adapted module, which no checkpoint holds; none of a module without adapters."""
    if config_of(module) is None:
        return set()
    return {name for name, parameter in module.named_parameters(remove_duplicate=False) if not parameter.requires_grad}


@contextmanager
def without_adapters(module: nn.Module) -> Iterator[None]:
    """Let it compute as the pretrained model does.

    Not by peft's `enable_adapters`: it also clears `requires_grad`, which FSDP reads when it first gathers a parameter.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [part for part in module.modules() if isinstance(part, BaseTunerLayer)]
    try:
        for layer in layers:
            layer._disable_adapters = True
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def describe_adapters(module: nn.Module, folder: Path) -> None:
    """Write the `adapter_config.json` from which peft builds the adapters again."""
    if (config := config_of(module)) is not None:
        config.save_pretrained(str(folder))


def to_peft(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"base_model.model.{peft_name(name) if '.lora_' in name else name}": each for name, each in weights.items()}


def peft_name(name: str) -> str:
    return name.replace(f".{NAME}", "").replace("lora_magnitude_vector.weight", "lora_magnitude_vector")
