"""Each process keeps a share of every parameter, gradient and optimizer state; blocks are put together one at a time, while they work."""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from snaketrain.models.blocks import blocks
from snaketrain.strategies.base import PRECISIONS, Distributed
from snaketrain.training.shards import PartsScaler, clip_parts


class Fsdp(Distributed):
    """PyTorch's FSDP2.

    `reshard_after_forward`: blocks are taken apart again until the backward pass, which saves memory and costs an exchange.
    `cpu_offload`: shares rest in the memory of the CPU, where the optimizer then works.
    `exchange_each_piece`: with `train.accumulate`, gradients are shared out after each piece: less memory, more exchange.
    """

    def __init__(self, reshard_after_forward: bool = True, cpu_offload: bool = False, exchange_each_piece: bool = False, **where: Any):
        super().__init__(**where)
        self.reshard_after_forward, self.exchange_each_piece = reshard_after_forward, exchange_each_piece
        self.offload = CPUOffloadPolicy(pin_memory=self.device.type == "cuda") if cpu_offload else OffloadPolicy()
        self.scaler = PartsScaler(self.device.type, enabled=self.precision == "fp16")

    def start(self) -> None:
        super().start()
        self.mesh = self.make_mesh()

    def make_mesh(self) -> DeviceMesh:
        return init_device_mesh(self.device.type, (self.world_size,), mesh_dim_names=("shard",))

    def place(self, module: nn.Module) -> nn.Module:
        return self.shared_out(module, self.mesh)

    def shared_out(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        """Blocks first; what is in none of them, such as tied embeddings, is kept together."""
        dtype = PRECISIONS[self.precision]
        # parameters travel in half precision; autocast stays on, for what is better done in fp32
        precision = MixedPrecisionPolicy(param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32)
        options = {"mesh": mesh, "mp_policy": precision, "offload_policy": self.offload}
        for block in blocks(module):
            fully_shard(block, reshard_after_forward=self.reshard_after_forward, **options)
        return fully_shard(module, **options)

    def accumulating(self, module: nn.Module, more_to_come: bool) -> contextlib.AbstractContextManager:
        if isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(self.exchange_each_piece or not more_to_come)
        return contextlib.nullcontext()

    def clip(self, module: nn.Module, optimizer: Any, longest: float) -> Tensor:
        return clip_parts(module.parameters(), longest)
