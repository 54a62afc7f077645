"""Norm and overflow of sharded gradients, computed as if they were full tensors."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor


def local_part(tensor: Tensor | None) -> Tensor | None:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def clip_parts(parameters: Iterable[nn.Parameter], longest: float) -> Tensor:
    """clip_grad_norm_ for parameters that are sharded over different device meshes, or not at all."""
    alike: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            alike.setdefault(getattr(parameter.grad, "device_mesh", None), []).append(parameter)
    norms = [torch.nn.utils.get_total_norm([parameter.grad for parameter in members]) for members in alike.values()]
    norm = torch.stack([norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]).norm()
    for members in alike.values():
        torch.nn.utils.clip_grads_with_norm_(members, longest, norm)
    return norm


class PartsScaler(ShardedGradScaler):
    """A gradient scaler for fp16: an overflow on one rank makes all ranks skip the step."""

    def _unscale_grads_(self, optimizer: Any, *args: Any) -> dict[torch.device, Tensor]:
        parts = [[SimpleNamespace(grad=local_part(p.grad)) for p in group["params"]] for group in optimizer.param_groups]
        return super()._unscale_grads_(SimpleNamespace(param_groups=[{"params": members} for members in parts]), *args)
