"""Splits a model's matrices: `tensor` ranks work on the same examples, each with its part of every matrix.

If there are more ranks, the batch is split across such groups: each group holds a full model, or with `shard: true` a shard
of it, as in fsdp.
"""

from typing import ClassVar

from snaketrain.models.call_types import Value
from snaketrain.strategies.mesh_base import Dimension, MeshBase
from snaketrain.strategies.tensor_plan import TensorDimension


class TensorParallel(MeshBase):
    """`plan`: a style for each pattern of module names, `{"*.fc1": colwise, "*.fc2": rowwise}`; none: the model's own plan."""

    degrees: ClassVar = {"tensor": "model_parallel"}
    data_parallel_arguments = ("shard",)
    always = ("tensor",)

    def __init__(self, tensor: int | None = None, shard: bool = False, plan: dict[str, str] | None = None, **options: Value):
        super().__init__(**options)
        self.plan = plan
        if tensor is None:
            self.wanted = {"tensor": -1}
        else:
            self.wanted = {"tensor": tensor, "shard" if shard else "replicate": -1}

    def make_dimensions(self) -> list[Dimension]:
        return [TensorDimension(self.mesh["tensor"], self.plan)]
