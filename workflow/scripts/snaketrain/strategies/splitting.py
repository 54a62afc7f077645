"""What ranks of a mesh split of a model: with `tensor` every matrix, with `loss_parallel` the logits, with `expert` the experts of a mixture."""

from collections import Counter
from fnmatch import fnmatchcase

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel, parallelize_module

from snaketrain.models import Args, Kwargs, Value
from snaketrain.models.blocks import blocks
from snaketrain.strategies.sequence import SequenceDimension
from snaketrain.strategies.shards import redistributed

# --- Sequence parallelism: between split matrices, each rank of the `tensor` dimension works on a piece of the sequence.
#
# What is not split, such as norms and residuals, is then neither computed nor kept by every rank.

SEQUENCE_PARALLEL = "train.strategy.arguments.sequence_parallel"


def within_blocks(module: nn.Module, styles: dict[str, ParallelStyle], mesh: DeviceMesh) -> dict[str, ParallelStyle]:
    """The styles, changed inside of blocks so that these exchange pieces of the sequence."""
    of_blocks = {id(part) for block in blocks(module) for part in block.modules()}
    inside = {name: part for name, part in module.named_modules() if id(part) in of_blocks}
    gathering = {name.rpartition(".")[0] for name, style in styles.items() if name in inside and isinstance(style, ColwiseParallel)}
    for name in gathering:
        inside[name].register_forward_pre_hook(lambda part, args, kwargs: gather_hidden(args, kwargs, mesh), with_kwargs=True)
    found = dict(styles)
    for name, part in inside.items():
        if isinstance(style := styles.get(name), RowwiseParallel):
            found[name] = RowwiseParallel(input_layouts=style.input_layouts[0], output_layouts=Shard(1))
        elif style is None and any(True for _ in part.parameters(recurse=False)):
            if any(name.startswith(f"{each}.") for each in gathering):
                raise SystemExit(
                    f"{SEQUENCE_PARALLEL}: the plan does not say how `{name}` is split. Add it to train.strategy.arguments.plan."
                )
            found[name] = SequenceParallel(use_local_output=True)
    return found


def gather_hidden(args: Args, kwargs: Kwargs, mesh: DeviceMesh) -> tuple[Args, Kwargs]:
    """The input of a module with split matrices: the sequence of all pieces."""
    # a DTensor, so that the gradients of all matrices are added before they are reduced and cut at once
    if "hidden_states" in kwargs:
        return args, kwargs | {"hidden_states": redistributed(kwargs["hidden_states"], mesh, Shard(1), Replicate())}
    return (redistributed(args[0], mesh, Shard(1), Replicate()), *args[1:]), kwargs


# --- Logits that are cut over ranks until the loss is known: with a large vocabulary, or long sequences, they are the largest tensor.

LOSS_PARALLEL = "train.strategy.arguments.loss_parallel"


class CutLogits:
    """By `tensor` ranks along the vocabulary, by `context` ranks along the sequence. `models.token_losses` takes them so; evaluations
    get whole ones."""

    def __init__(self, mesh: DeviceMesh, sequence: SequenceDimension | None):
        """`mesh`: of those of the dimensions `context` and `tensor` that there are."""
        self.mesh, self.sequence = mesh, sequence

    def apply(self, module: nn.Module) -> nn.Module:
        head = output_head(module)
        assert isinstance(head.weight, Tensor)
        self.vocabulary = head.weight.shape[0]
        head.register_forward_hook(self._cut)
        return module

    def _cut(self, head: nn.Module, args: Args, output: Tensor) -> Tensor:
        local = output.to_local() if isinstance(output, DTensor) else output
        whole = self.sequence.whole if self.sequence and not self.sequence.joins else None
        along = {"context": Shard(1) if whole else Replicate(), "tensor": Shard(2)}
        shape = torch.Size((local.shape[0], whole.padded if whole else local.shape[1], self.vocabulary))
        stride = (shape[1] * shape[2], shape[2], 1)
        placements = [along[name] for name in self.mesh.mesh_dim_names or ()]
        logits = DTensor.from_local(local, self.mesh, placements, run_check=False, shape=shape, stride=stride)
        if torch.is_grad_enabled():
            return logits
        return logits.full_tensor()[:, : whole.length if whole else None]


def output_head(module: nn.Module) -> nn.Module:
    """The layer that predicts tokens."""
    head = getattr(module, "get_output_embeddings", lambda: None)()
    if head is None:
        raise SystemExit(
            f"{LOSS_PARALLEL}: {type(module).__name__} does not predict tokens, so there are no large logits to cut. Remove it."
        )
    assert isinstance(head, nn.Module)
    return head


# --- Matrices: ranks of `tensor` work on the same examples, each with its part of every matrix.

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


# --- Experts of a mixture: each rank sends its tokens to the ranks of their experts, and gets the results back.

EXPERT = "train.strategy.arguments.expert"
DISPATCHES = "ep_dispatch_experts"  # how transformers' plans mark modules of experts


class ExpertDimension:
    def __init__(self, mesh: DeviceMesh):
        """`mesh`: of the dimension `expert` alone."""
        self.mesh = mesh
        self.parts: set[nn.Module] = set()  # the modules of experts

    def apply(self, module: nn.Module) -> nn.Module:
        for name, experts in experts_of(module).items():
            if experts.num_experts % self.mesh.size():
                raise SystemExit(
                    f"{EXPERT}: {self.mesh.size()} does not divide the {experts.num_experts} experts of `{name}`. Use a number that does."
                )
            for key, parameter in list(experts.named_parameters(recurse=False)):
                mine = distribute_tensor(parameter.detach(), self.mesh, [Shard(0)], src_data_rank=None)
                experts.register_parameter(key, nn.Parameter(mine, parameter.requires_grad))
            experts.forward = Dispatch(experts, self.mesh)
            self.parts.add(experts)
        return module


def experts_of(module: nn.Module) -> dict[str, Value]:
    """The modules of experts by name, from transformers' own plan. Their parameters have a first dimension of experts."""
    base = getattr(module, "base_model", module)
    plan = getattr(getattr(base, "config", None), "base_model_ep_plan", None) or {}
    patterns = [pattern for pattern, way in plan.items() if way == DISPATCHES]
    found = {name: part for name, part in base.named_modules() if any(fnmatchcase(name, pattern) for pattern in patterns)}
    if not found:
        raise SystemExit(
            f"{EXPERT}: {type(module).__name__} has no plan for experts (`base_model_ep_plan` of its configuration), as Mixtral and Qwen's "
            "mixtures have. Remove it."
        )
    return found


class Dispatch:
    """The forward pass of a module of experts: tokens, the experts of each, and their weights."""

    def __init__(self, experts: Value, mesh: DeviceMesh):
        self.experts, self.group, self.ranks, self.here = experts, mesh.get_group(), mesh.size(), experts.num_experts // mesh.size()

    def __call__(self, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        from transformers.integrations.moe import grouped_mm_experts_forward

        tokens, experts_each = top_k_index.shape
        chosen = top_k_index.flatten()
        order = chosen.argsort(stable=True)  # pairs of a token and an expert, by expert
        sent, received, theirs = self.sizes(chosen)
        rows = exchange(hidden[order // experts_each], sent, received, self.group)
        expert = torch.arange(self.here, device=hidden.device).repeat(self.ranks).repeat_interleave(theirs, output_size=len(rows))
        local = LocalExperts(self.experts, self.here, self.ranks)
        one_each = expert[:, None], rows.new_ones(len(rows), 1)
        done = grouped_mm_experts_forward(local, rows, *one_each)  # type: ignore[arg-type]  # it reads attributes alone
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        results = exchange(done, received, sent, self.group)[back].view(tokens, experts_each, -1)
        weighted: Tensor = (results * top_k_weights[..., None].to(results.dtype)).sum(1)
        return weighted.to(hidden.dtype)

    def sizes(self, chosen: Tensor) -> tuple[list[int], list[int], Tensor]:
        """The number of pairs that go to each rank, and that come from each; the latter also by expert, in the order of the ranks."""
        counts = torch.bincount(chosen, minlength=self.here * self.ranks)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.group)
        sent, received = (each.view(self.ranks, self.here).sum(1).tolist() for each in (counts, theirs))
        return sent, received, theirs


class LocalExperts:
    """What transformers' function needs of a module of experts, with those of this rank alone.

    Their gradients are sums over the tokens of all ranks already, where those of other parameters are averaged over the ranks later.
    """

    def __init__(self, experts: nn.Module, number: int, ranks: int):
        self._experts, self._ranks, self.num_experts = experts, ranks, number

    def __getattr__(self, name: str) -> Value:
        found = getattr(self._experts, name)
        if not isinstance(found, Tensor):
            return found
        local = found.to_local() if isinstance(found, DTensor) else found
        local = local.view_as(local)  # a hook of its own
        if local.requires_grad:
            local.register_hook(lambda gradient: gradient * (1.0 / self._ranks))  # type: ignore[no-untyped-call]  # torch has no types for it
        return local


def exchange(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    """Rows to the ranks that shall have them: so many to each, so many from each."""
    return _Exchange.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]  # torch has no types for it


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(context: Value, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        context.back = received, sent, group
        found = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(found, rows.contiguous(), received, sent, group=group)
        return found

    @staticmethod
    def backward(context: Value, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return exchange(gradient, *context.back), None, None, None
