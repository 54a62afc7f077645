"""Each process keeps a share of every parameter, gradient and optimizer state; blocks are put together one at a time, while they work."""

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from snaketrain.models.blocks import blocks
from snaketrain.models.without_memory import give_memory, has_memory
from snaketrain.strategies.base import PRECISIONS, Distributed
from snaketrain.strategies.shards import PartsScaler, clip_parts


class Fsdp(Distributed):
    """PyTorch's FSDP2.

    `reshard_after_forward`: blocks are taken apart again until the backward pass, which saves memory and costs an exchange.
    `cpu_offload`: shares rest in the memory of the CPU, where the optimizer then works.
    `exchange_each_piece`: with `train.accumulate`, gradients are shared out after each piece: less memory, more exchange.
    `build_once`: the first process alone makes the model and hands out its parts; otherwise each makes it on the CPU, and keeps its own.
    """

    scaler_class = PartsScaler

    def __init__(
        self,
        reshard_after_forward: bool = True,
        cpu_offload: bool = False,
        exchange_each_piece: bool = False,
        build_once: bool = False,
        **where: Any,
    ):
        super().__init__(**where)
        self.reshard_after_forward, self.exchange_each_piece, self.build_once = reshard_after_forward, exchange_each_piece, build_once
        self.offload = CPUOffloadPolicy(pin_memory=self.device.type == "cuda") if cpu_offload else OffloadPolicy()

    def start(self) -> None:
        super().start()
        self.mesh = self.make_mesh()

    def make_mesh(self) -> DeviceMesh:
        return init_device_mesh(self.device.type, (self.world_size,), mesh_dim_names=("shard",))

    @property
    def builds(self) -> bool:
        return self.rank == 0 or not self.build_once

    def place(self, module: nn.Module) -> nn.Module:
        if not self.build_once:
            return self.cut(module)
        whole = module.state_dict() if self.builds else {}
        module = self.cut(module)
        if not has_memory(module):
            give_memory(module, torch.device("cpu") if isinstance(self.offload, CPUOffloadPolicy) else self.device, self.device)
        set_model_state_dict(module, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
        for buffer in module.buffers():  # some are in no state, and may have been drawn at random
            dist.broadcast(buffer, 0)
        return module

    def cut(self, module: nn.Module) -> nn.Module:
        """Keep this process's part of each parameter."""
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
        return super().accumulating(module, more_to_come)

    def clip(self, module: nn.Module, optimizer: Any, longest: float) -> Tensor:
        return clip_parts(module.parameters(), longest)
