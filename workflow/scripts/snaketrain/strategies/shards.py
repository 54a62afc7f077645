"""Norm and overflow of sharded gradients, computed as if they were full tensors."""

from collections.abc import Iterable
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer


def local_tensor(tensor: Tensor | None) -> Tensor | None:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensor(tensor: Tensor) -> Tensor:
    """Gathered from all ranks where they hold shards."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor that all ranks have, in memory of its own."""
    if isinstance(like, DTensor):
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    return whole.to(like.device, copy=True)


@torch.no_grad()
def clip_sharded(parameters: Iterable[nn.Parameter], longest: float, others: dist.ProcessGroup | None = None) -> Tensor:
    """clip_grad_norm_ for parameters that are sharded over different device meshes, or not at all.

    `others`: a group of ranks each of which has other parameters of the same model.
    """
    every, alike = list(parameters), dict[DeviceMesh | None, list[nn.Parameter]]()
    for parameter in every:
        if parameter.grad is not None:
            alike.setdefault(getattr(parameter.grad, "device_mesh", None), []).append(parameter)
    norms = [torch.nn.utils.get_total_norm([p.grad for p in members if p.grad is not None]) for members in alike.values()]
    norms = [full_tensor(norm) for norm in norms] or [torch.zeros((), device=every[0].device)]  # a stage of a pipeline may be frozen
    norm: Tensor = torch.stack(norms).norm()
    if others:
        dist.all_reduce(squared := norm.double().square(), group=others)
        norm = squared.sqrt().to(norm.dtype)
    for members in alike.values():
        torch.nn.utils.clip_grads_with_norm_(members, longest, norm)
    return norm


class ShardedScaler(ShardedGradScaler):
    """A gradient scaler for fp16: an overflow on one rank makes all ranks skip the step."""

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool = True
    ) -> dict[torch.device, Tensor]:
        parts = [[SimpleNamespace(grad=local_tensor(p.grad)) for p in group["params"]] for group in optimizer.param_groups]
        local = SimpleNamespace(param_groups=[{"params": members} for members in parts])
        return super()._unscale_grads_(local, inv_scale, found_inf, allow_fp16)  # type: ignore[arg-type]  # only groups and gradients are read
