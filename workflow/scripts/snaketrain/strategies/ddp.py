"""Every process holds the whole model and works on its share of each batch; gradients are added up."""

import contextlib
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from snaketrain.strategies.single import Single


class DDP(Single):
    def _device(self, kind: str) -> torch.device:
        return torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)

    def start(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo", timeout=timedelta(minutes=30))
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def finish(self) -> None:
        dist.destroy_process_group()

    def prepare(self, module: nn.Module, make_optimizer: Callable[[nn.Module], Any]) -> tuple[nn.Module, Any]:
        wrapped = DistributedDataParallel(module.to(self.device))
        return wrapped, make_optimizer(wrapped)

    def unwrapped(self, module: nn.Module) -> nn.Module:
        return module.module

    def accumulating(self, module: nn.Module, more_to_come: bool) -> contextlib.AbstractContextManager:
        return module.no_sync() if more_to_come else contextlib.nullcontext()

    def backward(self, loss: Tensor) -> None:
        super().backward(loss * self.world_size)  # DDP takes the mean over the processes; ours is a sum

    def sum(self, tensor: Tensor) -> Tensor:
        total = tensor.double().to(self.device)
        dist.all_reduce(total)
        return total

    def any(self, flag: bool) -> bool:
        return bool(self.sum(torch.tensor(float(flag))) > 0)

    def everyones(self, item: Any) -> list[Any]:
        items: list[Any] = [None] * self.world_size
        dist.all_gather_object(items, item)
        return items
