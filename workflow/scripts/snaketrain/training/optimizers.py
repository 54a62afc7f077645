"""Builds optimizers over groups of named parameters, in the fastest implementation that torch has."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from snaketrain.config.references import load
from snaketrain.config.schema import ARGUMENTS_WITH_SETTINGS, Train, Use
from snaketrain.config.schema.train import NEEDS_CLOSURE
from snaketrain.runtime.variables import resolved
from snaketrain.training.combined_optimizer import CombinedOptimizer
from snaketrain.training.parameters import NamedGroup

Sharded = Callable[..., Optimizer]
Group = dict[str, Any]  # as optimizers take it: parameters and their options
FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)  # on CPUs and GPUs alike


def optimizer_of(
    train: Train, groups: list[NamedGroup], parameters: dict[str, nn.Parameter], sharded: Sharded | None = None, **options: object
) -> Optimizer:
    """The optimizer of parameters under their names in the plain module; or `sharded`, which takes its groups, class and arguments."""
    by_setting: dict[int | None, list[Group]] = {}
    for group in groups:
        number = group.get("setting")
        own = number if number is not None and train.groups[number].optimizer else None
        held = [parameters[key] for key in group["params"] if key in parameters]  # other stages of a pipeline hold others
        by_setting.setdefault(own, []).append({**group, "params": held})
    if sharded and len(by_setting) > 1:
        raise SystemExit(
            "train.groups: a strategy that shares one optimizer among the processes cannot use several for one module. Remove `optimizer` "
            "from the groups, or use ddp or fsdp."
        )
    made = [one_optimizer(*named(train, number), members, train.learning_rate, sharded, options) for number, members in by_setting.items()]
    return made[0] if len(made) == 1 else CombinedOptimizer(made)


def named(train: Train, number: int | None) -> tuple[Use, str]:
    """The setting of an optimizer, and its name."""
    if number is not None and (own := train.groups[number].optimizer):
        return own, f"train.groups.{number}.optimizer"
    return train.optimizer, "train.optimizer"


def one_optimizer(
    setting: Use, where: str, members: list[Group], rate: float, sharded: Sharded | None, options: dict[str, object]
) -> Optimizer:
    made, given = load(setting.use), resolved(setting.arguments)
    for name in ARGUMENTS_WITH_SETTINGS:
        if name in given:
            raise SystemExit(f"{where}.arguments.{name}: is set by {ARGUMENTS_WITH_SETTINGS[name]}. Set that instead.")
    step = getattr(made, "step", None)  # a function that makes an optimizer has none
    closure = inspect.signature(step).parameters.get("closure") if step else None
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise SystemExit(f"{where}.use: {setting.use} {NEEDS_CLOSURE}")
    arguments = {"lr": rate, **given}
    if made in FUSED and not {"fused", "foreach"} & set(given):  # all parameters in one call, which torch by itself does not choose
        members, arguments = by_mesh(members), {"fused": True, **arguments}
    try:
        optimizer: Optimizer = sharded(members, made, **arguments, **options) if sharded else made(members, **arguments)
    except ValueError as error:
        raise SystemExit(f"{where}: {setting.use}: {error}. Correct its arguments, or the parameters that it gets.") from error
    if not isinstance(optimizer, Optimizer):
        what = "nothing" if optimizer is None else f"a {type(optimizer).__name__}"
        raise SystemExit(
            f"{where}.use: `{setting.use}` returns {what}, not an optimizer. Name a class derived from torch.optim.Optimizer, or a function "
            "that returns one."
        )
    return optimizer


def by_mesh(groups: list[Group]) -> list[Group]:
    """Groups whose parameters are sharded over one device mesh each, or not at all, since a fused optimizer takes a group in one call."""
    found: list[Group] = []
    for group in groups:
        alike: dict[DeviceMesh | None, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            alike.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
        found += [{**group, "params": members} for members in alike.values() or [[]]]  # a stage of a pipeline may have none
    return found
