"""ddp in which each process keeps the optimizer state of its shard of the parameters only, and broadcasts what it has updated."""

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from snaketrain.strategies.base import Distributed, Keep, MakeOptimizer
from snaketrain.strategies.ddp import Ddp
from snaketrain.strategies.optimizer_state import Parameters, load_named, named_groups, named_state


class SharedOptimizer(Distributed):
    """Each process has an optimizer for its own shard of the parameters, the attribute `optim` of the one that the trainer sees."""

    def optimizer_state(self, module: nn.Module, optimizer: Any, keep: Keep) -> dict[str, Any]:
        parameters = dict(self.unwrapped(module).named_parameters())
        shares = [None] * self.world_size if self.rank == 0 else None
        dist.gather_object(named_state(optimizer.optim, parameters, lambda value, _: value.cpu()), shares)  # gathers copies
        state = {name: found for share in shares or [] for name, found in share.items()}
        return {"state": state, "param_groups": named_groups(optimizer, parameters)}

    def load_optimizer_state(self, optimizer: Any, parameters: Parameters, saved: dict[str, Any]) -> None:
        load_named(optimizer.optim, parameters, saved, self.part)
        for group, mine in zip(optimizer.param_groups, optimizer.optim.param_groups, strict=True):
            group.update({key: value for key, value in mine.items() if key != "params"})


class Zero1(SharedOptimizer, Ddp):
    def optimizer(self, parameters: Parameters, make_optimizer: MakeOptimizer) -> Any:
        # updated parameters are broadcast in one bucket, not one by one
        return make_optimizer(parameters, sharded=ZeroRedundancyOptimizer, parameters_as_bucket_view=True)
