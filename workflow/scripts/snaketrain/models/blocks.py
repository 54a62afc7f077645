"""The repeated blocks of large models, which are sharded, recomputed, compiled and computed in float8 one at a time."""

from types import MethodType
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
    block: Any
    for block in blocks(module) or [module]:
        if not hasattr(block, "kept_forward"):  # which modules that share the block may have done already
            block.kept_forward = block.forward
            block.forward = MethodType(_recomputed, block)


def _recomputed(block: nn.Module, *args: Any, **options: Any) -> Any:
    """A method, so that a copy of the block computes with its own weights; and torch.compile ignores a functools.partial without a word."""
    return checkpoint(block.kept_forward, *args, use_reentrant=False, **options)


def keep_no_cache(module: nn.Module) -> None:
    """Keep keys and values only where they are asked for, to generate."""
    for part in module.modules():
        config = getattr(part, "config", None)
        if config is not None and getattr(config, "use_cache", False):
            config.use_cache = False
