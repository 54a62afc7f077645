"""Tensors, gradients and optimizer states of which each rank holds a shard, treated as if they were whole."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import TypeAlias, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor, Placement, distribute_tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from snaketrain.models import ParameterGroups


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


def redistributed(local: Tensor, mesh: DeviceMesh, before: Placement, after: Placement) -> DTensor:
    """A tensor that ranks of one dimension hold, placed otherwise; gradients take the way back."""
    return DTensor.from_local(local, mesh, [before], run_check=False).redistribute(placements=[after])


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


# --- An optimizer's state as checkpoints keep it: full tensors under full parameter names, whatever the strategy.
#
# `{"state": {name: {...}}, "param_groups": [{"params": [names], ...}]}`, as in torch.distributed.checkpoint, whose own functions
# require a state for every parameter; a parameter that never had a gradient has none.

Parameters: TypeAlias = dict[str, nn.Parameter]
ParameterState: TypeAlias = dict[str, object]  # moments as tensors, and numbers
HOW = ("fused", "foreach")


class OptimizerState(TypedDict):
    state: dict[str, ParameterState]
    param_groups: ParameterGroups  # as torch types the groups of an optimizer


def local_optimizer(optimizer: Optimizer) -> Optimizer:
    """The one that steps this rank's parameters: ZeroRedundancyOptimizer and fairscale's OSS hold it as `optim`."""
    return getattr(optimizer, "optim", optimizer)


def named_state(
    optimizer: Optimizer, parameters: Parameters, whole: Callable[[Tensor, nn.Parameter], Tensor | None]
) -> dict[str, ParameterState]:
    """`whole` is called in the same order on all ranks, since it may be a collective."""
    found: dict[str, ParameterState] = {}
    for name, parameter in parameters.items():
        if state := optimizer.state.get(parameter):
            for value in state.values():
                if is_traceable_wrapper_subclass(value) and not isinstance(value, DTensor):
                    raise SystemExit(
                        f"train.optimizer: {type(optimizer).__name__} keeps its state in tensors of a class of its own ({type(value).__name__}), which checkpoints "
                        "do not keep as they are: a resumed training would differ. For states in 8 bits use bitsandbytes.optim.AdamW8bit."
                    )
            found[name] = {key: whole(value, parameter) if isinstance(value, Tensor) else value for key, value in state.items()}
    return found


def named_groups(optimizer: Optimizer, parameters: Parameters) -> ParameterGroups:
    names = {parameter: name for name, parameter in parameters.items()}
    return [group | {"params": [names[parameter] for parameter in group["params"]]} for group in optimizer.param_groups]


def load_named(optimizer: Optimizer, parameters: Parameters, saved: OptimizerState, part: Callable[[Tensor, nn.Parameter], Tensor]) -> None:
    """Give each parameter its state; the parameter groups may differ from those that were saved."""
    names = {parameter: name for name, parameter in parameters.items()}
    saved_group = {name: group for group in saved["param_groups"] for name in group["params"]}
    state: dict[int, ParameterState] = {}
    groups, first = [], 0
    for group in optimizer.param_groups:
        for number, parameter in enumerate(group["params"], start=first):  # optimizers number their parameters in this order
            entries = saved["state"].get(names[parameter], {})
            state[number] = {
                key: _apart(part(value, parameter), parameter) if isinstance(value, Tensor) else value for key, value in entries.items()
            }
        members = list(range(first, first + len(group["params"])))
        like = saved_group.get(names[group["params"][0]], group) if members else group
        how = {key: group[key] for key in HOW if key in group}  # chosen by this strategy, not by the one that saved
        groups.append(like | how | {"params": members})
        first += len(members)
    optimizer.load_state_dict({"state": {number: entries for number, entries in state.items() if entries}, "param_groups": groups})


def _apart(value: Tensor, parameter: nn.Parameter) -> Tensor:
    """A copy independent of the memory-mapped file, which is deleted later; moving to another device copies anyway."""
    if isinstance(value, DTensor):  # made for this rank
        return value
    return value.clone() if value.ndim == 0 or parameter.device.type == "cpu" else value
