"""Splits a model's matrices: `tensor` ranks work on the same examples, each with its part of every matrix.

If there are more ranks, the batch is split across such groups: each group holds a full model, or with `shard: true` a shard
of it, as in fsdp.
"""

from collections import Counter
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel, parallelize_module

from snaketrain.models.without_memory import has_memory
from snaketrain.strategies.fsdp import Fsdp

STYLES = {  # by transformers' names
    "colwise": ColwiseParallel(),
    "rowwise": RowwiseParallel(),
    "colwise_gather_output": ColwiseParallel(output_layouts=Replicate()),
    "rowwise_split_input": RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": RowwiseParallel(input_layouts=Replicate()),
    "replicated_with_grad_allreduce": SequenceParallel(sequence_dim=2, use_local_output=True),  # a norm within each head
}
HEADS = ("num_attention_heads", "num_key_value_heads", "encoder_attention_heads", "decoder_attention_heads")


class TensorParallel(Fsdp):
    """`plan`: a style for each pattern of module names, `{"*.fc1": colwise, "*.fc2": rowwise}`; none: the model's own plan."""

    degrees: ClassVar = {"tensor": "model_parallel"}
    data_parallel_arguments = ("shard",)
    trains_adapters = False

    def __init__(self, tensor: int | None = None, shard: bool = False, plan: dict[str, str] | None = None, **options: Any):
        super().__init__(**options)
        self.tensor, self.shard, self.plan = tensor, shard, plan

    def make_mesh(self) -> DeviceMesh:
        self.model_parallel_size = self.tensor or self.world_size
        copies, shares = (1, self.data_parallel_size) if self.shard else (self.data_parallel_size, 1)
        return init_device_mesh(
            self.device.type, (copies, shares, self.model_parallel_size), mesh_dim_names=("replicate", "shard", "tensor")
        )

    def shard_module(self, module: nn.Module) -> nn.Module:
        # no broadcast is needed, since all ranks start with the same weights
        parallelize_module(module, self.mesh["tensor"], self.styles(module), src_data_rank=None)
        if self.data_parallel_size > 1:
            return self.shard_blocks(module, self.mesh["replicate", "shard"])
        return module.to(self.device) if has_memory(module) else module

    def styles(self, module: nn.Module) -> dict[str, ParallelStyle]:
        """The style of each module that the plan names. Tied weights are not split, since only one of their uses would be."""
        plan = self.plan or getattr(module, "_tp_plan", None)
        if not plan:
            raise SystemExit(
                f"train.strategy.arguments.plan: is missing, and {type(module).__name__} has no plan for tensor parallelism of its own. "
                'Say how matrices are split, such as {"*.fc1": colwise, "*.fc2": rowwise}, or use `fsdp`.'
            )
        self.check_heads(module)
        used = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
        matrices = {name: part for name, part in module.named_modules() if list(part.parameters(recurse=False))}
        found: dict[str, ParallelStyle] = {}
        for pattern, style in plan.items():
            if style not in STYLES:
                raise SystemExit(
                    f"train.strategy.arguments.plan: `{pattern}` is to be split `{style}`, which is not one of {', '.join(STYLES)}. "
                    "Give a plan of your own."
                )
            names = [name for name in matrices if fnmatchcase(name, pattern)]
            if self.plan and not names:
                raise SystemExit(f"train.strategy.arguments.plan: nothing matches `{pattern}`. There are: {', '.join(matrices)}.")
            free = [name for name in names if all(used[id(parameter)] == 1 for parameter in matrices[name].parameters())]
            found |= dict.fromkeys(free, STYLES[style])
        return found

    def check_heads(self, module: nn.Module) -> None:
        for name in HEADS:
            heads = getattr(getattr(module, "config", None), name, None)
            if isinstance(heads, int) and heads % self.model_parallel_size:
                raise SystemExit(
                    f"train.strategy.arguments.tensor: {self.model_parallel_size} does not divide the model's {name} ({heads}), and heads cannot be split."
                )
