"""The cross entropy of each token with little memory: with a large vocabulary the logits are the largest tensor of a training.

PyTorch's own function also keeps the log probabilities in float32. Here only the model's logits are kept; float32 values are
computed in chunks, and recomputed in the backward pass.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.functional import pad

from snaketrain.models.weights import has_memory

# --- Rows of logits in chunks: what is computed of a chunk at a time in float32 takes little memory beside all logits.

NO_TARGET = -100  # the target of a position that is not learnt
CHUNK = 2**24  # logits


def chunks(logits: Tensor) -> Iterator[slice]:
    rows = max(1, CHUNK // logits.shape[1])
    return (slice(start, start + rows) for start in range(0, len(logits), rows))


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss at each position in float32, 0 where there is no target; `logits` have one dimension more than `targets`."""
    if isinstance(logits, DTensor):
        return cut_token_losses(logits, targets)
    losses: Tensor = _TokenLosses.apply(logits.flatten(0, -2), targets.flatten(), 0, None)  # type: ignore[no-untyped-call]  # torch has no types for it
    return losses.view_as(targets)


def learnt_rows(logits: Tensor, targets: Tensor, setting: str) -> tuple[Tensor, Tensor]:
    """The logits at the positions that have a target, in float32, and these; for a loss that `setting` names."""
    if isinstance(logits, DTensor):
        raise SystemExit(f"{setting}: needs whole logits, and each rank has a part of them. Leave out `loss_parallel`, or this loss.")
    if isinstance(targets, FakeTensor):  # of a plan, which has no values: as if all had one
        return logits.flatten(0, -2).float(), targets.flatten()
    learnt = targets != NO_TARGET
    return logits[learnt].float(), targets[learnt]


# --- `token_losses` of logits that are cut over ranks, along the vocabulary, the sequence, or both. No rank ever has them whole.


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
    losses: Tensor = _TokenLosses.apply(local, rows.flatten(), first, group)  # type: ignore[no-untyped-call]  # torch has no types for it
    losses = losses.view_as(rows)
    if context is not None:  # each rank's gradient counts, so their sum is cut again
        names = mesh.mesh_dim_names or ()
        whole = DTensor.from_local(losses, mesh[names[context]], [Shard(1)], run_check=False).redistribute(placements=[Replicate()])
        losses = whole.to_local(grad_placements=[Partial()])
    return losses[:, : targets.shape[1]]


class _TokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(context: FunctionCtx, logits: Tensor, targets: Tensor, first: int, group: dist.ProcessGroup | None) -> Tensor:
        """`first`: the token of the first column, where the ranks of a group have a part of the vocabulary each."""
        learnt = targets != NO_TARGET
        here = learnt if group is None else (targets >= first) & (targets < first + logits.shape[1])
        columns = (targets - first).masked_fill(~here, 0)
        of_target = logits.gather(1, columns[:, None])[:, 0].float().masked_fill(~here, 0.0)
        normaliser = torch.cat([logits[at].float().logsumexp(-1) for at in chunks(logits)])
        if group is not None:
            dist.all_reduce(largest := normaliser.clone(), dist.ReduceOp.MAX, group)
            dist.all_reduce(sums := torch.stack([(normaliser - largest).exp(), of_target]), dist.ReduceOp.SUM, group)
            normaliser, of_target = sums[0].log() + largest, sums[1]
        context.save_for_backward(logits, columns, here, learnt, normaliser)
        return (normaliser - of_target).masked_fill(~learnt, 0.0)

    @staticmethod
    def backward(context: BackwardCFunction, above: Tensor) -> tuple[Tensor, None, None, None]:
        saved: tuple[Tensor, ...] = context.saved_tensors
        logits, columns, here, learnt, normaliser = saved
        gradient = torch.empty_like(logits)
        for at in chunks(logits):
            part = logits[at].float().sub(normaliser[at, None]).exp_()
            part.scatter_add_(1, columns[at, None], -here[at, None].float())
            gradient[at] = part.mul_((above[at] * learnt[at])[:, None])
        return gradient, None, None, None


# --- What tokens attend to in a language model: not every transformers class is causal, or separates packed texts.

HALF = 6  # tokens


def sees_later_tokens(model: nn.Module) -> bool:
    """Whether the last token changes earlier predictions: such a model would only learn to copy."""
    return _differ(model, changed=-1, seen=slice(0, -1), position_ids=None)


def refuse_later_tokens(model: nn.Module, use: str) -> None:
    if sees_later_tokens(model):
        raise SystemExit(
            f"model.use: {use} attends to the tokens that it has to predict. Name a causal class, or set model.arguments.is_decoder."
        )


def can_be_probed(model: nn.Module) -> bool:
    """Not on the meta device, nor with FlashAttention, which needs a GPU."""
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None) or ""
    return "flash" not in attention and has_memory(model)


def sees_other_texts(model: nn.Module) -> bool:
    """Whether the first text of a row changes predictions in the second, although `position_ids` separate them."""
    return _differ(model, changed=0, seen=slice(HALF, None), position_ids=torch.arange(HALF).repeat(2)[None])


def vocabulary_size(model: nn.Module) -> int:
    """The number of tokens that the model predicts among; 0 if it does not predict tokens."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    return 0 if head is None else len(head.weight)


@torch.no_grad()
def _differ(model: nn.Module, changed: int, seen: slice, position_ids: Tensor | None) -> bool:
    """Whether the logits at the `seen` positions depend on the token at the `changed` one."""
    tokens = torch.arange(2 * HALF, device=next(model.parameters()).device)[None] % vocabulary_size(model)
    others = tokens.clone()
    others[0, changed] = (others[0, changed] + 1) % vocabulary_size(model)
    training = model.training
    model.eval()
    given = {} if position_ids is None else {"position_ids": position_ids.to(tokens.device)}
    first, second = (model(input_ids=ids, use_cache=False, **given).logits[0, seen].float() for ids in (tokens, others))
    model.train(training)
    return bool((first - second).abs().max() > 1e-4 * first.abs().max())
