"""fairscale's OSS and ShardedDataParallel: each process keeps the gradients and optimizer state of its shard of the parameters only."""

import contextlib
from typing import Any

from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
from torch import Tensor, nn

from snaketrain.strategies.base import MakeOptimizer
from snaketrain.strategies.optimizer_state import Parameters
from snaketrain.strategies.shards import PartsScaler
from snaketrain.strategies.zero1 import SharedOptimizer


class FairscaleOss(SharedOptimizer):
    """`buffer_mb`: reduces small gradients together, in buffers that every process keeps in full: faster, but takes more memory."""

    scaler_class = PartsScaler

    def __init__(self, buffer_mb: float = 0, **where: Any):
        super().__init__(**where)
        self.buffer_numbers = int(buffer_mb * 2**20 / 4)

    def prepare(self, module: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Any]:
        module, optimizer = super().prepare(module, make_optimizer)
        return ShardedDataParallel(module, optimizer, reduce_buffer_size=self.buffer_numbers), optimizer

    def optimizer(self, parameters: Parameters, make_optimizer: MakeOptimizer) -> Any:
        return make_optimizer(parameters, sharded=OSS)

    def unwrapped(self, module: nn.Module) -> nn.Module:
        return module.module if isinstance(module, ShardedDataParallel) else super().unwrapped(module)

    def accumulating(self, module: nn.Module, more_to_come: bool) -> contextlib.AbstractContextManager:
        if more_to_come and isinstance(module, ShardedDataParallel):
            return module.no_sync()
        return super().accumulating(module, more_to_come)

    def clip(self, module: nn.Module, optimizer: Any, longest: float) -> Tensor:
        return optimizer.clip_grad_norm(longest)  # each process has the gradients of its own shard only

    def clear(self, module: nn.Module, optimizer: Any) -> None:
        # the wrapper keeps the gradients that are views into its buffers. The optimizer's zero_grad would detach them,
        # and from then on gradients would silently not be reduced any more
        module.zero_grad(set_to_none=True)
