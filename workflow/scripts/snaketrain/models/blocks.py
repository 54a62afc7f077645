"""The repeated blocks of large models, which are sharded, recomputed, compiled and computed in float8 one at a time."""

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def blocks(module: nn.Module) -> list[nn.Module]:
    """The entries of the outermost lists of modules, such as the layers of an encoder and a decoder."""
    if isinstance(module, nn.ModuleList) and len(module) > 1:
        return [entry for entry in module if any(True for _ in entry.parameters())]
    return [block for child in module.children() for block in blocks(child)]


def recompute_activations(module: nn.Module) -> None:
    """Activation checkpointing: each block keeps only its input, and recomputes the rest in the backward pass."""
    keep_no_cache(module)  # otherwise recomputing would append the keys and values of earlier tokens twice
    for block in blocks(module) or [module]:
        block.forward = _recomputed(block.forward)


def keep_no_cache(module: nn.Module) -> None:
    """Keep keys and values only where they are asked for, to generate."""
    for part in module.modules():
        config = getattr(part, "config", None)
        if config is not None and getattr(config, "use_cache", False):
            config.use_cache = False


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)  # not functools.partial: torch.compile would not compile that, without a word
    def compute(*args: Any, **options: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **options)

    return compute
