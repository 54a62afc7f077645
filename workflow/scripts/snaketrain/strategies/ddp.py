"""Every rank holds the whole model and works on its share of each batch; gradients are all-reduced."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from snaketrain.strategies.base import MakeOptimizer
from snaketrain.strategies.distributed import Distributed


class Ddp(Distributed):
    """`unused_parameters`: for models in which some parameters get no gradient in some steps."""

    trains_adapters = True

    def __init__(self, static_graph: bool = False, bucket_mb: float = 25, unused_parameters: bool = False, **where: str):
        super().__init__(**where)
        # torch rebuilds its buckets after the first step, which changes the order of summation; a resumed training would do so at another step
        self.unused_parameters = unused_parameters or torch.are_deterministic_algorithms_enabled()
        self.static_graph, self.bucket_mb = static_graph, bucket_mb

    def prepare(self, module: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Optimizer]:
        # gradients are views into the buckets that are all-reduced, which saves a copy of them
        wrapped = DistributedDataParallel(
            self.place(module), gradient_as_bucket_view=True, static_graph=self.static_graph, bucket_cap_mb=self.bucket_mb,
            find_unused_parameters=self.unused_parameters,
        )  # fmt: skip
        return wrapped, self.optimizer(dict(module.named_parameters()), make_optimizer)
