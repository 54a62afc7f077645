"""Every process holds the whole model and works on its share of each batch; gradients are all-reduced."""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from snaketrain.strategies.base import Distributed, MakeOptimizer


class Ddp(Distributed):
    """`unused_parameters`: some parameters get no gradient in some steps, and their peers must not wait for it."""

    def __init__(self, static_graph: bool = False, bucket_mb: float = 25, unused_parameters: bool = False, **where: Any):
        super().__init__(**where)
        # torch rebuilds its buckets after the first step, which changes the order of summation; a resumed training would do so at another step
        unused = unused_parameters or torch.are_deterministic_algorithms_enabled()
        self.options = {"static_graph": static_graph, "bucket_cap_mb": bucket_mb, "find_unused_parameters": unused}

    def prepare(self, module: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Any]:
        # gradients are views into the buckets that are all-reduced, which saves a copy of them
        wrapped = DistributedDataParallel(self.place(module), gradient_as_bucket_view=True, **self.options)
        return wrapped, self.optimizer(dict(module.named_parameters()), make_optimizer)
