"""One process that splits each microbatch across all GPUs of the machine. `ddp` is faster, but this one needs no launcher."""

import logging

import torch
from torch import nn
from torch.optim import Optimizer

from snaketrain.strategies.base import MakeOptimizer, Strategy


class DataParallel(Strategy):
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
