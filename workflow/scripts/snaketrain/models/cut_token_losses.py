"""`token_losses` of logits that are cut over ranks, along the vocabulary, the sequence, or both. No rank ever has them whole."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.functional import pad

from snaketrain.models.logit_chunks import NO_TARGET, chunks


def cut_token_losses(logits: DTensor, targets: Tensor) -> Tensor:
    """`logits` of (row, position, token), with perhaps more positions than `targets`; the losses of all positions, on every rank."""
    mesh, rows = logits.device_mesh, pad(targets, (0, logits.shape[1] - targets.shape[1]), value=NO_TARGET)
    context: int | None = None
    group: dist.ProcessGroup | None = None
    first = 0
    for dimension, placement in enumerate(logits.placements):
        if placement.is_shard(1):
            context, rows = dimension, rows.chunk(mesh.size(dimension), 1)[mesh.get_local_rank(dimension)]
        elif placement.is_shard(2):
            group = mesh.get_group(dimension)
            first = -(-logits.shape[2] // mesh.size(dimension)) * mesh.get_local_rank(dimension)
    local = logits.to_local().flatten(0, 1)
    losses: Tensor = _CutTokenLosses.apply(local, rows.flatten(), first, group)  # type: ignore[no-untyped-call]  # torch has no types for it
    losses = losses.view_as(rows)
    if context is not None:  # each rank's gradient counts, so their sum is cut again
        names = mesh.mesh_dim_names or ()
        whole = DTensor.from_local(losses, mesh[names[context]], [Shard(1)], run_check=False).redistribute(placements=[Replicate()])
        losses = whole.to_local(grad_placements=[Partial()])
    return losses[:, : targets.shape[1]]


class _CutTokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(context: FunctionCtx, logits: Tensor, targets: Tensor, first: int, group: dist.ProcessGroup | None) -> Tensor:
        """`first`: the token of the first column."""
        largest = _reduced(torch.cat([logits[at].amax(-1).float() for at in chunks(logits)]), dist.ReduceOp.MAX, group)
        here = (targets >= first) & (targets < first + logits.shape[1])
        columns = (targets - first).masked_fill(~here, 0)
        own = logits.gather(1, columns[:, None])[:, 0].float().masked_fill(~here, 0.0)
        sums = torch.cat([(logits[at].float() - largest[at, None]).exp().sum(-1) for at in chunks(logits)])
        sums, of_target = _reduced(torch.stack([sums, own]), dist.ReduceOp.SUM, group)
        normaliser = sums.log() + largest
        context.save_for_backward(logits, columns, here, targets != NO_TARGET, normaliser)
        losses: Tensor = (normaliser - of_target).masked_fill(targets == NO_TARGET, 0.0)
        return losses

    @staticmethod
    def backward(context: BackwardCFunction, above: Tensor) -> tuple[Tensor, None, None, None]:
        saved: tuple[Tensor, ...] = context.saved_tensors
        logits, columns, here, learnt, normaliser = saved
        gradient = torch.empty_like(logits)
        for at in chunks(logits):
            part = (logits[at].float() - normaliser[at, None]).exp()
            part.scatter_add_(1, columns[at, None], -here[at, None].float())
            gradient[at] = part.mul_((above[at] * learnt[at])[:, None])
        return gradient, None, None, None


def _reduced(tensor: Tensor, by: "dist.ReduceOp.RedOpType", group: dist.ProcessGroup | None) -> Tensor:
    if group is not None:
        dist.all_reduce(tensor, by, group)
    return tensor
