"""fsdp within groups of `shard` ranks and ddp between the groups, so that most communication stays where the network is fast."""

from typing import ClassVar

from snaketrain.models.call_types import Value
from snaketrain.strategies.mesh_base import MeshBase


class Hsdp(MeshBase):
    degrees: ClassVar = {"shard": "data_parallel"}

    def __init__(self, shard: int, **options: Value):
        super().__init__(**options)
        self.wanted = {"replicate": -1, "shard": shard}
