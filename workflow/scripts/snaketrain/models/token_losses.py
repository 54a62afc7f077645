"""The cross entropy of each token in little memory: for a large vocabulary the logits are the largest tensor of a training.

PyTorch's own keeps the logarithms of all probabilities in float32 besides. Here the logits alone are kept, as they come from the
model; what is needed in float32 is made a chunk at a time, and for the gradients once more.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

NO_TARGET = -100
CHUNK = 2**24  # logits


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss at each position in float32, 0 where there is no target; `logits` have one dimension more than `targets`."""
    return _TokenLosses.apply(logits.flatten(0, -2), targets.flatten()).view_as(targets)


class _TokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(context, logits: Tensor, targets: Tensor) -> Tensor:
        context.save_for_backward(logits, targets)
        losses = [cross_entropy(logits[at].float(), targets[at], reduction="none", ignore_index=NO_TARGET) for at in _chunks(logits)]
        return torch.cat(losses)

    @staticmethod
    def backward(context, above: Tensor) -> tuple[Tensor, None]:
        logits, targets = context.saved_tensors
        gradient = torch.empty_like(logits)
        for at in _chunks(logits):
            there = targets[at, None] != NO_TARGET
            part = logits[at].float().softmax(-1)
            part.scatter_add_(1, targets[at, None].clamp(min=0), -torch.ones_like(part[:, :1]))
            gradient[at] = part.mul_(above[at, None] * there)
        return gradient, None


def _chunks(logits: Tensor) -> Iterator[slice]:
    rows = max(1, CHUNK // logits.shape[1])
    return (slice(start, start + rows) for start in range(0, len(logits), rows))
