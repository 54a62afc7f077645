"""fairscale's OSS and ShardedDataParallel: each rank keeps the gradients and optimizer state of its shard of the parameters only."""

import contextlib

from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
from torch import Tensor, nn
from torch.optim import Optimizer

from snaketrain.strategies.base import MakeOptimizer
from snaketrain.strategies.optimizer_state import Parameters
from snaketrain.strategies.shards import ShardedScaler
from snaketrain.strategies.zero1 import SharedOptimizer


class FairscaleOss(SharedOptimizer):
    """`buffer_mb`: reduces small gradients together, in buffers that every rank keeps in full: faster, but takes more memory."""

    scaler_class = ShardedScaler

    def __init__(self, buffer_mb: float = 0, **where: str):
        super().__init__(**where)
        self.buffer_numbers = int(buffer_mb * 2**20 / 4)

    def prepare(self, module: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Optimizer]:
        module, optimizer = super().prepare(module, make_optimizer)
        return ShardedDataParallel(module, optimizer, reduce_buffer_size=self.buffer_numbers), optimizer

    def optimizer(self, parameters: Parameters, make_optimizer: MakeOptimizer) -> Optimizer:
        return make_optimizer(parameters, sharded=OSS)

    def unwrapped(self, module: nn.Module) -> nn.Module:
        return module.module if isinstance(module, ShardedDataParallel) else super().unwrapped(module)

    def accumulating(self, module: nn.Module, more_to_come: bool) -> contextlib.AbstractContextManager[object]:
        if more_to_come and isinstance(module, ShardedDataParallel):
            unsynchronized: contextlib.AbstractContextManager[object] = module.no_sync()
            return unsynchronized
        return super().accumulating(module, more_to_come)

    def clip(self, module: nn.Module, optimizer: Optimizer, longest: float) -> Tensor:
        assert isinstance(optimizer, OSS)
        norm: Tensor = optimizer.clip_grad_norm(longest)  # each rank has the gradients of its own shard only
        return norm

    def clear(self, module: nn.Module, optimizer: Optimizer) -> None:
        # the wrapper keeps gradients as views into its buffers; the optimizer's zero_grad would detach them, and from then on
        # they would silently not be reduced
        module.zero_grad(set_to_none=True)
