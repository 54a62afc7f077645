"""ddp in which each rank keeps the optimizer state of its shard of the parameters only, and broadcasts what it has updated."""

import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from snaketrain.strategies.base import Keep, MakeOptimizer
from snaketrain.strategies.ddp import Ddp
from snaketrain.strategies.distributed import Distributed
from snaketrain.strategies.optimizer_state import (
    OptimizerState,
    Parameters,
    ParameterState,
    load_named,
    local_optimizer,
    named_groups,
    named_state,
)


class SharedOptimizer(Distributed):
    """Each rank has an optimizer for its own shard of the parameters, inside the one that the trainer sees."""

    def optimizer_state(self, module: nn.Module, optimizer: Optimizer, keep: Keep) -> OptimizerState:
        parameters = dict(self.unwrapped(module).named_parameters())
        mine = named_state(local_optimizer(optimizer), parameters, lambda value, _: value.cpu())
        shares: list[dict[str, ParameterState]] | None = [mine] * self.world_size if self.rank == 0 else None
        dist.gather_object(mine, shares)  # gathers copies
        state = {name: found for share in shares or [] for name, found in share.items()}
        return {"state": state, "param_groups": named_groups(optimizer, parameters)}

    def load_optimizer_state(self, optimizer: Optimizer, parameters: Parameters, saved: OptimizerState) -> None:
        load_named(local_optimizer(optimizer), parameters, saved, self.part)
        for group, mine in zip(optimizer.param_groups, local_optimizer(optimizer).param_groups, strict=True):
            group.update({key: value for key, value in mine.items() if key != "params"})


class Zero1(SharedOptimizer, Ddp):
    trains_adapters = False

    def optimizer(self, parameters: Parameters, make_optimizer: MakeOptimizer) -> Optimizer:
        # updated parameters are broadcast in one bucket, not one by one
        return make_optimizer(parameters, sharded=ZeroRedundancyOptimizer, parameters_as_bucket_view=True)
