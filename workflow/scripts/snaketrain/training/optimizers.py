"""Optimizers by their class, over groups of named parameters, in the fastest way that torch has for them."""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from snaketrain.config.references import load
from snaketrain.config.schema import OF_THEIR_OWN, Train

FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)  # on CPUs and GPUs alike


def optimizer_of(train: Train, groups: list[dict[str, Any]], parameters: dict[str, nn.Parameter], sharded: Any = None, **how: Any) -> Any:
    """The optimizer of parameters that are called as they were in the plain module; or `sharded`, which takes its groups and class."""
    members = [group | {"params": [parameters[key] for key in group["params"]]} for group in groups]
    made, given = load(train.optimizer.use), train.optimizer.arguments
    for name in OF_THEIR_OWN:
        if name in given:
            raise SystemExit(f"train.optimizer.arguments.{name}: is told by {OF_THEIR_OWN[name]}. Set that instead.")
    quick = {} if {"fused", "foreach"} & set(given) else fastest(made, [p for group in members for p in group["params"]])
    options = {"lr": train.learning_rate, **quick, **given}
    return sharded(members, made, **options, **how) if sharded else made(members, **options)


def fastest(made: Any, parameters: list[nn.Parameter]) -> dict[str, bool]:
    """All parameters in one call, which torch by itself does not do. Those that are cut into parts cannot all be taken together."""
    return {"fused": True} if made in FUSED and not any(isinstance(parameter, DTensor) for parameter in parameters) else {}
