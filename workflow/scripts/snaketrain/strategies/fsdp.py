"""Each rank keeps a shard of every parameter, gradient and optimizer state; blocks are gathered one at a time, while they compute."""

from snaketrain.strategies.mesh_base import MeshBase


class Fsdp(MeshBase):
    """The mesh whose ranks all shard."""

    trains_adapters = True
