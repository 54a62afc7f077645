"""The repeated blocks that large models are made of: what is sharded, recomputed and compiled one at a time."""

import functools

from torch import nn
from torch.utils.checkpoint import checkpoint


def blocks(module: nn.Module) -> list[nn.Module]:
    """The entries of the outermost lists of modules, such as the layers of an encoder and a decoder."""
    if isinstance(module, nn.ModuleList) and len(module) > 1:
        return [entry for entry in module if any(True for _ in entry.parameters())]
    return [block for child in module.children() for block in blocks(child)]


def recompute_activations(module: nn.Module) -> None:
    """Each block keeps its input only, and computes the rest again when its gradients are due."""
    for part in module.modules():
        if getattr(getattr(part, "config", None), "use_cache", False):
            part.config.use_cache = False  # keys and values of earlier tokens, which a second time would be added once more
    for block in blocks(module) or [module]:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def compile_blocks(module: nn.Module) -> None:
    """Block by block: one compilation serves all that are alike, so that the start is not as slow as the model is deep."""
    for block in blocks(module) or [module]:
        block.compile()
