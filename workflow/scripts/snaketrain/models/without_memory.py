"""Modules with parameters on the meta device, on ranks that will receive their shards from another rank."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook


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
