"""An optimizer's state as checkpoints keep it: full tensors under full parameter names, whatever the strategy.

`{"state": {name: {...}}, "param_groups": [{"params": [names], ...}]}`, as in torch.distributed.checkpoint, whose own functions
require a state for every parameter; a parameter that never had a gradient has none.
"""

from collections.abc import Callable
from typing import TypeAlias, TypedDict

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from snaketrain.models.call_types import ParameterGroups

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
