"""Strategies in which every process holds the whole model: `single`, `data_parallel`, `ddp` and `zero1`."""

import logging

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from snaketrain.strategies.base import Keep, MakeOptimizer, Strategy
from snaketrain.strategies.distributed import Distributed, gather_named
from snaketrain.strategies.shards import (
    OptimizerState,
    Parameters,
    load_named,
    local_optimizer,
    named_groups,
    named_state,
)


class Ddp(Distributed):
    """Each rank works on its share of each batch; gradients are all-reduced.

    `unused_parameters`: for models in which some parameters get no gradient in some steps.
    """

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


class Single(Strategy):
    """One process on one device."""

    trains_adapters = True


class DataParallel(Strategy):
    """One process that splits each microbatch across all GPUs of the machine. `ddp` is faster, but this one needs no launcher."""

    def prepare(self, module: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Optimizer]:
        gpus = torch.cuda.device_count() if self.device.type == "cuda" else 0
        if gpus < 2:
            logging.warning("train.strategy `data_parallel` found %d GPUs and trains as `single` does", gpus)
        elif any("forward" in vars(part) or part._compiled_call_impl for part in module.modules()):
            # replicas would keep calling the original's `forward`
            raise SystemExit(
                "train.strategy `data_parallel` copies the model in each step, which train.recompute_activations and train.compile "
                "do not survive: remove them, or use `ddp`."
            )
        module = self.place(module)
        return nn.DataParallel(module), make_optimizer(dict(module.named_parameters()))

    def unwrapped(self, module: nn.Module) -> nn.Module:
        return module.module if isinstance(module, nn.DataParallel) else module


class SharedOptimizer(Distributed):
    """Each rank has an optimizer for its own shard of the parameters, inside the one that the trainer sees."""

    def optimizer_state(self, module: nn.Module, optimizer: Optimizer, keep: Keep) -> OptimizerState:
        parameters = dict(self.unwrapped(module).named_parameters())
        mine = named_state(local_optimizer(optimizer), parameters, lambda value, _: value.cpu())
        return {"state": gather_named(mine), "param_groups": named_groups(optimizer, parameters)}

    def load_optimizer_state(self, optimizer: Optimizer, parameters: Parameters, saved: OptimizerState) -> None:
        load_named(local_optimizer(optimizer), parameters, saved, self.part)
        for group, mine in zip(optimizer.param_groups, local_optimizer(optimizer).param_groups, strict=True):
            group.update({key: value for key, value in mine.items() if key != "params"})


class Zero1(SharedOptimizer, Ddp):
    """ddp in which each rank keeps the optimizer state of its shard of the parameters only, and broadcasts what it has updated."""

    trains_adapters = False

    def optimizer(self, parameters: Parameters, make_optimizer: MakeOptimizer) -> Optimizer:
        # its import compiles it, for which other strategies need not wait
        from torch.distributed.optim import ZeroRedundancyOptimizer

        # updated parameters are broadcast in one bucket, not one by one
        return make_optimizer(parameters, sharded=ZeroRedundancyOptimizer, parameters_as_bucket_view=True)
