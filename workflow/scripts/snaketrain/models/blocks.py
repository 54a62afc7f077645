"""The repeated blocks of large models, which are sharded, recomputed, compiled and computed in float8 one at a time."""

import logging
import sysconfig
from pathlib import Path
from types import MethodType
from typing import Any

import torch
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


# --- Compiles a model by torch.compile, block by block.

# of the blocks' code: training or evaluation, with a mask or without, a fixed shape or any, an encoder or a decoder. BART needs more than
# torch's 8, and what exceeds the limit is not compiled
VARIANTS = 64


def compile_blocks(module: nn.Module, device: torch.device) -> None:
    """Each block by itself: equal blocks share one compilation, so that a deep model starts faster."""
    if lacking := missing_compiler(device):
        raise SystemExit(f"train.compile: {lacking}. Remove it, or install what is missing.")
    keep_no_cache(module)  # with a cache, each block would need a compilation of its own
    dynamo = torch._dynamo.config
    dynamo.recompile_limit = max(VARIANTS, dynamo.recompile_limit)
    for block in blocks(module) or [module]:
        block.compile()


def missing_compiler(device: torch.device) -> str | None:
    """What torch.compile lacks on this machine; otherwise it would say so in the middle of the first step."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        return None if has_triton() else "needs triton, and a GPU of compute capability 7.0 or newer"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "needs a C++ compiler, such as g++ (package g++), and finds none"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return None if headers.is_file() else f"needs Python's headers ({headers}, package python3-dev), which are missing"


# --- Matrix products of the blocks' linear layers in 8-bit floating point, by torchao; weights, gradients and all else stay as in bf16.

CAPABILITY = 8, 9  # of the first GPUs with such products
MULTIPLE = 16  # of both sizes of a matrix
SETTING = "train.precision"


def use_float8(module: nn.Module, device: torch.device) -> None:
    """In place; parameters stay the same, under the same names."""
    chosen = linear_layers(module)
    if problem := float8_problem(device) or ("" if chosen else f"no linear layer of its blocks has sizes divisible by {MULTIPLE}"):
        raise SystemExit(f"{SETTING}: is fp8, but {problem}. Set it to bf16.")
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(pad_inner_dim=True)  # any number of tokens: weights' gradients are products over them
    convert_to_float8_training(module, module_filter_fn=lambda _, name: name in chosen, config=config)
    logging.info("float8: %d linear layers compute their matrix products in 8 bits", len(chosen))


def float8_problem(device: torch.device) -> str:
    """Why this machine cannot; empty if it can."""
    if device.type != "cuda":
        return "only GPUs multiply such matrices"
    if torch.cuda.get_device_capability(device) < CAPABILITY:
        return f"{torch.cuda.get_device_name(device)} does not multiply such matrices, as GPUs of compute capability 8.9 (Ada, Hopper) do"
    try:
        import torchao.float8  # noqa: F401
    except ImportError as error:
        return f"torchao is not installed, or does not fit this version of torch ({error})"
    return ""


def linear_layers(module: nn.Module) -> set[str]:
    """The names of those that float8 is used for: those of blocks, so neither embeddings nor the head."""
    inside = {id(part) for block in blocks(module) for part in block.modules()}
    return {
        name
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear) and id(part) in inside and part.in_features % MULTIPLE == part.out_features % MULTIPLE == 0
    }
