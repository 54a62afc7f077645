"""Linear layers with frozen weights of 4 bits, for adapters to be trained beside them (QLoRA): the type NF4 of Dettmers et al. 2023.

Each weight is one of 16 values, quantiles of a normal distribution, times the largest of its block. Layers are quantized when a training starts,
from the pretrained weights in full; no checkpoint holds them.
"""

import logging
from collections.abc import Collection
from statistics import NormalDist

import torch
from torch import Tensor, nn
from torch.nn import functional

from snaketrain.models.weights import tied_names

BLOCK = 64  # weights that share a scale


def nf4_values() -> Tensor:
    """The mean quantiles of 8 equal shares below 0 and of 9 above it, with 0 and 1 among them."""
    outermost, quantile = 0.9677083, NormalDist().inv_cdf
    above = [quantile(0.5 + (outermost - 0.5) * n / 8) for n in range(1, 9)]
    below = [-quantile(0.5 + (outermost - 0.5) * n / 7) for n in range(7, 0, -1)]
    return torch.tensor([*below, 0.0, *above]) / above[-1]


VALUES = nf4_values()
BETWEEN = (VALUES[1:] + VALUES[:-1]) / 2


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Two weights in each byte, and the scale of each block; the last one is filled up with zeros."""
    blocks = functional.pad(weight.detach().float().flatten(), (0, -weight.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True)
    codes = torch.bucketize(blocks / scales.clamp(min=torch.finfo(torch.float32).tiny), BETWEEN.to(blocks.device), out_int32=True)
    codes = codes.to(torch.uint8).flatten()
    return codes[::2] << 4 | codes[1::2], scales.flatten()


def dequantize(codes: Tensor, scales: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    both = torch.stack([codes >> 4, codes & 15], dim=1).flatten()
    blocks = VALUES.to(codes.device)[both.int()].view(-1, BLOCK) * scales[:, None]
    return blocks.flatten()[: shape.numel()].view(shape).to(dtype)


class Product(torch.autograd.Function):
    """With a weight that is dequantized again for the backward pass, instead of being kept until then."""

    @staticmethod
    def forward(ctx, inputs: Tensor, codes: Tensor, scales: Tensor, shape: torch.Size) -> Tensor:  # type: ignore[no-untyped-def]  # torch has no type for ctx
        ctx.save_for_backward(codes, scales)
        ctx.shape = shape
        return functional.linear(inputs, dequantize(codes, scales, shape, inputs.dtype))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[no-untyped-def]
        codes, scales = ctx.saved_tensors
        return gradient @ dequantize(codes, scales, ctx.shape, gradient.dtype), None, None, None


class QuantizedLinear(nn.Linear):
    """Without its weight in full: `weight` has the codes."""

    scales: Tensor

    def __init__(self, linear: nn.Linear):
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias
        codes, scales = quantize(linear.weight)
        self.weight, self.scales = (nn.Parameter(each, requires_grad=False) for each in (codes, scales))

    def forward(self, inputs: Tensor) -> Tensor:
        kind = inputs.device.type
        if kind != "meta" and torch.is_autocast_enabled(kind):
            inputs = inputs.to(torch.get_autocast_dtype(kind))
        found: Tensor = Product.apply(inputs, self.weight, self.scales, torch.Size((self.out_features, self.in_features)))  # type: ignore[no-untyped-call]
        return found if self.bias is None else found + self.bias.to(found.dtype)


def quantizable(module: nn.Module, trained: Collection[nn.Module]) -> list[str]:
    """The linear layers that are not trained; without the output layer of a language model, and without tied ones."""
    left_out = {each for part in trained for each in part.modules()}
    if callable(output := getattr(module, "get_output_embeddings", None)):
        left_out.add(output())
    tied = {name for pair in tied_names(module).items() for name in pair}
    linear = ((name, part) for name, part in module.named_modules() if type(part) is nn.Linear and part not in left_out)
    if not (found := [name for name, _ in linear if f"{name}.weight" not in tied]):
        raise SystemExit("model.adapters.quantize: the model has no linear layers of torch that are not trained. Remove it.")
    return found


def quantize_layers(module: nn.Module, names: Collection[str]) -> None:
    logging.info("adapters: %d linear layers in 4 bits", len(names))
    for name in names:
        module.set_submodule(name, QuantizedLinear(module.get_submodule(name)))  # type: ignore[arg-type]  # `quantizable` names only these


def round_layers(module: nn.Module, names: Collection[str]) -> None:
    """Give layers the weights in full that those which are quantized compute with."""
    for name in names:
        weight = module.get_submodule(name).weight
        assert isinstance(weight, Tensor)
        weight.data = dequantize(*quantize(weight), weight.shape, weight.dtype)
