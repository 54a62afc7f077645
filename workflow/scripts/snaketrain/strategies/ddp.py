"""Every process holds the whole model and works on its share of each batch; gradients are added up."""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from snaketrain.strategies.base import Distributed, MakeOptimizer


class Ddp(Distributed):
    """`unused_parameters`: some have no gradient in some steps, and the others shall not wait for them."""

    def __init__(self, static_graph: bool = False, bucket_mb: float = 25, unused_parameters: bool = False, **where: Any):
        super().__init__(**where)
        # torch would lay out its buffers anew after the first step, and then add in another order: so would a resumed training, but later
        unused = unused_parameters or torch.are_deterministic_algorithms_enabled()
        self.options = {"static_graph": static_graph, "bucket_cap_mb": bucket_mb, "find_unused_parameters": unused}

    def prepare(self, module: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Any]:
        # gradients live in the buffers in which they are exchanged, and not twice
        wrapped = DistributedDataParallel(self.place(module), gradient_as_bucket_view=True, **self.options)
        return wrapped, self.optimizer(dict(module.named_parameters()), make_optimizer)
