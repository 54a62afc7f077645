"""Every process holds the whole model and works on its share of each batch; gradients are added up."""

import contextlib
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from snaketrain.strategies.base import Distributed, MakeOptimizer


class Ddp(Distributed):
    def __init__(self, static_graph: bool = False, bucket_mb: float = 25, **where: Any):
        super().__init__(**where)
        self.options = {"static_graph": static_graph, "bucket_cap_mb": bucket_mb}

    def prepare(self, module: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Any]:
        wrapped = DistributedDataParallel(self.place(module), **self.options)
        return wrapped, make_optimizer(wrapped)

    def unwrapped(self, module: nn.Module) -> nn.Module:
        return module.module if isinstance(module, DistributedDataParallel) else module

    def accumulating(self, module: nn.Module, more_to_come: bool) -> contextlib.AbstractContextManager:
        if more_to_come and isinstance(module, DistributedDataParallel):
            return module.no_sync()
        return contextlib.nullcontext()
