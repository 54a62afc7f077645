"""The cross entropy of each token with little memory: with a large vocabulary the logits are the largest tensor of a training.

PyTorch's own function also keeps the log probabilities in float32. Here only the model's logits are kept; float32 values are
computed in chunks, and recomputed in the backward pass.
"""

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.nn.functional import cross_entropy

from snaketrain.models.logit_chunks import NO_TARGET, chunks


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss at each position in float32, 0 where there is no target; `logits` have one dimension more than `targets`."""
    if type(logits) is not Tensor:
        from torch.distributed.tensor import DTensor  # here: one process need not wait for it

        from snaketrain.models.cut_token_losses import cut_token_losses

        if isinstance(logits, DTensor):
            return cut_token_losses(logits, targets)
    losses: Tensor = _TokenLosses.apply(logits.flatten(0, -2), targets.flatten())  # type: ignore[no-untyped-call]  # torch has no types for it
    return losses.view_as(targets)


class _TokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(context: FunctionCtx, logits: Tensor, targets: Tensor) -> Tensor:
        context.save_for_backward(logits, targets)
        losses = [cross_entropy(logits[at].float(), targets[at], reduction="none", ignore_index=NO_TARGET) for at in chunks(logits)]
        return torch.cat(losses)

    @staticmethod
    def backward(context: BackwardCFunction, above: Tensor) -> tuple[Tensor, None]:
        saved: tuple[Tensor, ...] = context.saved_tensors
        logits, targets = saved
        gradient = torch.empty_like(logits)
        for at in chunks(logits):
            there = targets[at, None] != NO_TARGET
            part = logits[at].float().softmax(-1)
            part.scatter_add_(1, targets[at, None].clamp(min=0), -torch.ones_like(part[:, :1]))
            gradient[at] = part.mul_(above[at, None] * there)
        return gradient, None
