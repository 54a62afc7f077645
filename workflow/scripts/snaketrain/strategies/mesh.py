"""Ranks in a grid of up to six dimensions, each a way to share a training that is too large or too slow for fewer ranks."""

from typing import Any, ClassVar

from snaketrain.strategies.mesh_base import Dimension, MeshBase
from snaketrain.strategies.tensor_plan import TensorDimension


class Mesh(MeshBase):
    """The product of the degrees is the number of processes; -1 stands for those that the others leave, `shard` takes them by default.

    `replicate`: groups that each hold the whole model. `shard`: ranks that hold shards of it, as in fsdp.
    `tensor`: ranks that split matrices, by `plan` or the model's own, as in tensor_parallel.
    """

    degrees_fill_mesh: ClassVar[bool] = True

    def __init__(
        self,
        replicate: int = 1,
        shard: int | None = None,
        tensor: int = 1,
        plan: dict[str, str] | None = None,
        **options: Any,
    ):
        super().__init__(**options)
        self.wanted = {"replicate": replicate, "tensor": tensor} | ({} if shard is None else {"shard": shard})
        self.plan = plan

    def make_dimensions(self) -> list[Dimension]:
        found: list[Dimension] = []
        if self.shape.tensor > 1:
            found.append(TensorDimension(self.mesh, self.plan))
        return found
