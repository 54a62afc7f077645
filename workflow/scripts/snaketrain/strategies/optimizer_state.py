"""An optimizer's state as checkpoints keep it: full tensors under full parameter names, whatever the strategy.

`{"state": {name: {...}}, "param_groups": [{"params": [names], ...}]}`, as in torch.distributed.checkpoint, whose own functions
require a state for every parameter; a parameter that never had a gradient has none.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Parameters = dict[str, nn.Parameter]
HOW = ("fused", "foreach")
Convert = Callable[[Tensor, nn.Parameter], Any]


def named_state(optimizer: Any, parameters: Parameters, whole: Convert) -> dict[str, dict[str, Any]]:
    """`whole` is called in the same order on all ranks, since it may be a collective."""
    found = {}
    for name, parameter in parameters.items():
        if state := optimizer.state.get(parameter):
            found[name] = {key: whole(value, parameter) if isinstance(value, Tensor) else value for key, value in state.items()}
    return found


def named_groups(optimizer: Any, parameters: Parameters) -> list[dict[str, Any]]:
    names = {parameter: name for name, parameter in parameters.items()}
    return [group | {"params": [names[parameter] for parameter in group["params"]]} for group in optimizer.param_groups]


def load_named(optimizer: Any, parameters: Parameters, saved: dict[str, Any], part: Convert) -> None:
    """Give each parameter its state; the parameter groups may differ from those that were saved."""
    names = {parameter: name for name, parameter in parameters.items()}
    saved_group = {name: group for group in saved["param_groups"] for name in group["params"]}
    state: dict[int, dict[str, Any]] = {}
    groups, first = [], 0
    for group in optimizer.param_groups:
        for number, parameter in enumerate(group["params"], start=first):  # optimizers number their parameters in this order
            entries = saved["state"].get(names[parameter], {})
            state[number] = {
                key: _apart(part(value, parameter), parameter) if isinstance(value, Tensor) else value for key, value in entries.items()
            }
        members = list(range(first, first + len(group["params"])))
        like = saved_group.get(names[group["params"][0]], group) if members else group
        how = {key: group[key] for key in HOW if key in group}  # this strategy's choice, not that of the one that saved it
        groups.append(like | how | {"params": members})
        first += len(members)
    optimizer.load_state_dict({"state": {number: entries for number, entries in state.items() if entries}, "param_groups": groups})


def _apart(value: Tensor, parameter: nn.Parameter) -> Tensor:
    """A copy that does not depend on the memory-mapped file, which is deleted later; moving it to another device copies it anyway."""
    return value.clone() if value.ndim == 0 or parameter.device.type == "cpu" else value
