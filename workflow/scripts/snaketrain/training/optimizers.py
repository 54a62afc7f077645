"""Builds optimizers over groups of named parameters, in the fastest implementation that torch has."""

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from snaketrain.config.references import load
from snaketrain.config.schema import OF_THEIR_OWN, Train
from snaketrain.training.parameters import NamedGroup

FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)  # on CPUs and GPUs alike


def optimizer_of(
    train: Train, groups: list[NamedGroup], parameters: dict[str, nn.Parameter], sharded: Callable[..., Optimizer] | None = None,
    **options: object,
) -> Optimizer:  # fmt: skip
    """The optimizer of parameters under their names in the plain module; or `sharded`, which takes its groups, class and arguments."""
    members = [{**group, "params": [parameters[key] for key in group["params"]]} for group in groups]
    made, given = load(train.optimizer.use), train.optimizer.arguments
    for name in OF_THEIR_OWN:
        if name in given:
            raise SystemExit(f"train.optimizer.arguments.{name}: is set by {OF_THEIR_OWN[name]}. Set that instead.")
    chosen = {"fused", "foreach"} & set(given)
    quick = {} if chosen else fastest(made, [parameters[key] for group in groups for key in group["params"]])
    arguments = {"lr": train.learning_rate, **quick, **given}
    optimizer: Optimizer = sharded(members, made, **arguments, **options) if sharded else made(members, **arguments)
    return optimizer


def fastest(made: type[Optimizer], parameters: list[nn.Parameter]) -> dict[str, bool]:
    """Fused, which updates all parameters in one call, but which torch does not choose by itself. Sharded parameters cannot all be fused."""
    return {"fused": True} if made in FUSED and not any(isinstance(parameter, DTensor) for parameter in parameters) else {}
