"""Compiles a model by torch.compile, block by block."""

import sysconfig
from pathlib import Path

import torch
from torch import nn

from snaketrain.models.blocks import blocks, keep_no_cache

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
