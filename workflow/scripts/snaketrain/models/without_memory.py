"""Modules whose parameters have a shape and no memory, in processes that will get their parts of them from another process."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """What is made within has such parameters; its buffers, which are small and often in no file, are real."""
    register = nn.Module.register_parameter

    def register_without_memory(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:  # tied ones stay one
            parameter = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = register_without_memory
    try:
        yield
    finally:
        nn.Module.register_parameter = register


def has_memory(module: nn.Module) -> bool:
    return not any(parameter.is_meta for parameter in module.parameters())


def give_memory(module: nn.Module, parameters: torch.device, buffers: torch.device) -> None:
    """For its parameters, or the parts of them that are this process's; what is in it is left to chance."""
    kept = [(owner, name, buffer) for owner in module.modules() for name, buffer in owner.named_buffers(recurse=False)]
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # else each use of a tied parameter would get its own
    try:
        module.to_empty(device=parameters)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)
    for owner, name, buffer in kept:
        setattr(owner, name, buffer.to(buffers))
