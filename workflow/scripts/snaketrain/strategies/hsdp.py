"""fsdp within groups of `shard` ranks and ddp between the groups, so that most communication stays where the network is fast."""

from typing import Any, ClassVar

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from snaketrain.strategies.fsdp import Fsdp


class Hsdp(Fsdp):
    degrees: ClassVar = {"shard": "data_parallel"}
    trains_adapters = False

    def __init__(self, shard: int, **options: Any):
        super().__init__(**options)
        self.shard = shard

    def make_mesh(self) -> DeviceMesh:
        sizes = (self.world_size // self.shard, self.shard)
        return init_device_mesh(self.device.type, sizes, mesh_dim_names=("replicate", "shard"))
