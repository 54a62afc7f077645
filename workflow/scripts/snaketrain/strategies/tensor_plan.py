"""The `tensor` dimension of a mesh: its ranks work on the same examples, each with its part of every matrix."""

from collections import Counter
from fnmatch import fnmatchcase

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel, parallelize_module

from snaketrain.strategies.cut_logits import output_head
from snaketrain.strategies.sequence_parallel import within_blocks

STYLES = {  # by transformers' names
    "colwise": ColwiseParallel(),
    "rowwise": RowwiseParallel(),
    "colwise_gather_output": ColwiseParallel(output_layouts=Replicate()),
    "rowwise_split_input": RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": RowwiseParallel(input_layouts=Replicate()),
    "replicated_with_grad_allreduce": SequenceParallel(sequence_dim=2, use_local_output=True),  # a norm within each head
}
HEADS = ("num_attention_heads", "num_key_value_heads", "encoder_attention_heads", "decoder_attention_heads")


class TensorDimension:
    """`plan`: a style for each pattern of module names, `{"*.fc1": colwise, "*.fc2": rowwise}`; none: the model's own plan."""

    def __init__(self, mesh: DeviceMesh, plan: dict[str, str] | None, sequence_parallel: bool = False, loss_parallel: bool = False):
        self.mesh, self.plan = mesh, plan
        self.sequence_parallel, self.loss_parallel = sequence_parallel, loss_parallel

    def apply(self, module: nn.Module) -> nn.Module:
        styles = self.styles(module)
        if self.loss_parallel:
            self.keep_logits_cut(module, styles)
        if self.sequence_parallel:
            styles = within_blocks(module, styles, self.mesh)
        # no broadcast is needed, since all ranks start with the same weights
        return parallelize_module(module, self.mesh, styles, src_data_rank=None)

    def keep_logits_cut(self, module: nn.Module, styles: dict[str, ParallelStyle]) -> None:
        head = output_head(module)
        name = next(name for name, part in module.named_modules() if part is head)
        if not isinstance(styles.get(name), ColwiseParallel):
            raise SystemExit(
                f"train.strategy.arguments.loss_parallel: the plan does not split `{name}`, or its weights are tied to the embeddings. "
                "Remove it, or set model.arguments.tie_word_embeddings: false."
            )
        styles[name] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)

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
            if isinstance(heads, int) and heads % self.mesh.size():
                raise SystemExit(
                    f"train.strategy.arguments.tensor: {self.mesh.size()} does not divide the model's {name} ({heads}), and heads cannot be split. Use a number that does."
                )
