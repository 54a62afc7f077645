"""Activation checkpointing of blocks; the losses are compared in tests/distributed."""

import copy

import torch
from torch import nn

from snaketrain.models.blocks import recompute_activations


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def kept_bytes(module: nn.Module) -> int:
    """Of the tensors that the forward pass saves for the backward pass."""
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: sizes.append(tensor.nbytes) or tensor, lambda tensor: tensor):
        module(torch.ones(64, 2, requires_grad=True)).sum().backward()
    return sum(sizes)


def test_blocks_keep_less():
    module = Small()
    whole = kept_bytes(module)
    recompute_activations(module)
    assert kept_bytes(module) < 0.5 * whole


def test_a_copy_computes_with_its_own_weights():
    module = Small()
    recompute_activations(module)
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    x = torch.ones(1, 2)
    assert module(x).abs().sum() > 0 and other(x).abs().sum() == 0


def test_blocks_of_two_modules_are_recomputed_once():
    module, other = Small(), Small()
    other.blocks = module.blocks
    expected = module(torch.ones(1, 2))
    for each in (module, other):
        recompute_activations(each)
    assert torch.equal(other(torch.ones(1, 2)), expected)
