"""Matrix products of the blocks' linear layers in 8-bit floating point, by torchao; weights, gradients and all else stay as in bf16."""

import logging

import torch
from torch import nn

from snaketrain.models.blocks import blocks

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
