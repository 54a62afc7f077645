"""Builds optimizers over groups of named parameters, in the fastest implementation that torch has."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from snaketrain.config.references import load
from snaketrain.config.schema import ARGUMENTS_WITH_SETTINGS, Train
from snaketrain.training.parameters import NamedGroup

Group = dict[str, Any]  # as optimizers take it: parameters and their options
FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)  # on CPUs and GPUs alike


def optimizer_of(
    train: Train, groups: list[NamedGroup], parameters: dict[str, nn.Parameter], sharded: Callable[..., Optimizer] | None = None,
    **options: object,
) -> Optimizer:  # fmt: skip
    """The optimizer of parameters under their names in the plain module; or `sharded`, which takes its groups, class and arguments."""
    members: list[Group] = [{**group, "params": [parameters[key] for key in group["params"]]} for group in groups]
    made, given = load(train.optimizer.use), train.optimizer.arguments
    for name in ARGUMENTS_WITH_SETTINGS:
        if name in given:
            raise SystemExit(f"train.optimizer.arguments.{name}: is set by {ARGUMENTS_WITH_SETTINGS[name]}. Set that instead.")
    arguments = {"lr": train.learning_rate, **given}
    if made in FUSED and not {"fused", "foreach"} & set(given):  # all parameters in one call, which torch by itself does not choose
        members, arguments = by_mesh(members), {"fused": True, **arguments}
    optimizer: Optimizer = sharded(members, made, **arguments, **options) if sharded else made(members, **arguments)
    return optimizer


def by_mesh(groups: list[Group]) -> list[Group]:
    """Groups whose parameters are sharded over one device mesh each, or not at all, since a fused optimizer takes a group in one call."""
    found: list[Group] = []
    for group in groups:
        alike: dict[DeviceMesh | None, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            alike.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
        found += [{**group, "params": members} for members in alike.values()]
    return found
