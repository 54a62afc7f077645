"""The base class of strategies with several processes."""

import contextlib
import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from snaketrain.runtime.processes import raise_limit
from snaketrain.runtime.ranks import Ranks
from snaketrain.strategies.base import Strategy, T, best_precision
from snaketrain.strategies.collectives import Collectives, record_collectives, recorded_collectives


class Distributed(Strategy):
    """Ranks connected by torch.distributed; what they exchange while training is up to the derived strategies."""

    multi_process = True
    wrappers: ClassVar[tuple[type[Any], ...]] = (DistributedDataParallel,)  # of modules, also of those that a task wraps itself
    tries_again = False  # peers are blocked in a collective, and wrappers are in the middle of a backward pass

    def start(self) -> None:
        ranks = Ranks.of_environment()
        ranks.export()
        if self.device.type == "cuda":
            self.device = torch.device("cuda", ranks.gpu)
            torch.cuda.set_device(self.device)
        if not dist.is_initialized():
            self.connect(ranks)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        if self.asked == "auto":  # nodes may have different GPUs
            found = self.all_gather_object(best_precision(self.device))
            self.compute_in(found[0] if len(set(found)) == 1 else "fp16")

    def connect(self, ranks: Ranks) -> None:
        # gloo connects ranks when they first exchange something, which most do with their neighbours in a ring alone; connected to
        # all others, each of 1,024 ranks would exceed the usual limit on open files
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
        record_collectives()
        warning = raise_limit(ranks.world_size)
        if warning and ranks.rank == 0:
            logging.warning(warning)
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(minutes=30))
        # the connections of most collectives now, since gloo (torch 2.13) waits for ever for a first one from a peer that has ended
        dist.all_reduce(number := torch.zeros(1))
        dist.broadcast(number, 0)

    def finish(self) -> None:
        self.wait()  # rank 0 may host the rendezvous store that the others still use

    def unwrapped(self, module: nn.Module) -> nn.Module:
        return module.module if isinstance(module, self.wrappers) else module

    @torch.no_grad()
    def share_buffers(self, module: nn.Module) -> None:
        for part in self.unwrapped(module).modules():
            for name, buffer in part.named_buffers(recurse=False):
                if name not in part._non_persistent_buffers_set:  # such as tables of positions, which do not change
                    dist.broadcast(buffer, 0)

    def accumulating(self, module: nn.Module, more_to_come: bool) -> contextlib.AbstractContextManager[object]:
        return module.no_sync() if more_to_come and isinstance(module, self.wrappers) else contextlib.nullcontext()

    def backward(self, loss: Tensor, weight: Tensor) -> None:
        super().backward(loss, weight * self.data_parallel_size)  # DDP and FSDP average gradients over ranks; ours are sums

    def all_reduce_scalars_ahead(self, *numbers: float) -> Callable[[], list[float]]:
        total = torch.tensor(numbers, dtype=torch.float64)  # on the CPU, so that the device's queue is not interrupted
        work = dist.all_reduce(total, async_op=True)

        def result() -> list[float]:
            work.wait()
            return (total / self.model_parallel_size).tolist()

        return result

    def sum(self, tensor: Tensor) -> Tensor:
        total = tensor.double().to(self.device)
        dist.all_reduce(total)
        return total / self.model_parallel_size

    def all_gather_object(self, item: T) -> list[T]:
        return all_gather(item)[:: self.model_parallel_size]

    def wait(self) -> None:
        self.all_gather_object(None)

    def collectives(self) -> Collectives:
        return recorded_collectives()


def all_gather(item: T, group: dist.ProcessGroup | None = None) -> list[T]:
    items = [item] * dist.get_world_size(group)
    dist.all_gather_object(items, item, group=group)
    return items


def gather_named(mine: dict[str, T], group: dist.ProcessGroup | None = None) -> dict[str, T]:
    """Copies of what all have, on the first process; nothing on the others."""
    items = [mine] * dist.get_world_size(group) if dist.get_rank(group) == 0 else None
    dist.gather_object(mine, items, group=group, group_dst=0)
    return {name: item for share in items or [] for name, item in share.items()}
