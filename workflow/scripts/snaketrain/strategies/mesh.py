"""Ranks in a grid of up to six dimensions, each a way to share a training that is too large or too slow for fewer ranks."""

from collections.abc import Callable
from typing import ClassVar

from torch import nn

from snaketrain.config.sizes import is_used, option_errors
from snaketrain.models.call_types import Value
from snaketrain.models.without_memory import has_memory
from snaketrain.strategies.expert_parallel import ExpertDimension
from snaketrain.strategies.mesh_base import Dimension
from snaketrain.strategies.pipelining import Pipelining
from snaketrain.strategies.sequence import ContextAttention, SequenceDimension
from snaketrain.strategies.tensor_plan import CutLogits, TensorDimension


class Mesh(Pipelining):
    """The product of the degrees is the number of processes; -1 stands for those that the others leave, `shard` takes them by default.

    `replicate`: groups that each hold the whole model. `shard`: ranks that hold shards of it, as in fsdp.
    `tensor`: ranks that split matrices, by `plan` or the model's own, as in tensor_parallel; with `sequence_parallel` also what is
    between the matrices.
    `context`: ranks that split sequences; `context_attention`: how they attend to each other's pieces, `gather` or `ulysses`.
    `loss_parallel`: ranks of `tensor` and `context` keep their parts of the logits; for tasks that predict tokens.
    `expert`: ranks, with examples of their own, that each have some of the experts of a mixture.
    `pipeline`: ranks that each have some of the layers, by a `schedule`: `1f1b`; `interleaved`, with two stages on each rank; or `zbv`, with
    two, which computes the gradients of inputs and of weights apart. The last two wait less and send more.
    """

    degrees_fill_mesh: ClassVar[bool] = True

    def __init__(
        self,
        replicate: int = 1,
        shard: int | None = None,
        tensor: int = 1,
        context: int = 1,
        expert: int = 1,
        pipeline: int = 1,
        schedule: str = "1f1b",
        plan: dict[str, str] | None = None,
        sequence_parallel: bool = False,
        context_attention: str = "gather",
        loss_parallel: bool = False,
        **options: Value,
    ):
        wanted = {"replicate": replicate, "tensor": tensor, "context": context, "expert": expert, "pipeline": pipeline}
        if is_used(wanted, "pipeline"):
            options.setdefault("reshard_after_forward", False)  # each microbatch would gather the parameters again
        super().__init__(**options)
        self.wanted = wanted
        self.wanted |= {} if shard is None else {"shard": shard}
        self.plan, self.context_attention, self.schedule = plan, context_attention, schedule
        self.sequence_parallel, self.loss_parallel = sequence_parallel, loss_parallel
        for problem in option_errors(vars(self) | self.wanted | options):
            raise SystemExit(f"{problem}.")

    def make_dimensions(self) -> list[Dimension]:
        shape = self.shape
        tensor = self.mesh["tensor"] if shape.tensor > 1 else None
        self.fine_mesh = fine = self.make_fine_mesh() if shape.context > 1 or shape.expert > 1 else self.mesh
        found: list[Dimension] = []
        self.experts = ExpertDimension(fine["expert"]) if shape.expert > 1 else None
        if self.experts:
            found.append(self.experts)
        if tensor:
            found.append(TensorDimension(tensor, self.plan, self.sequence_parallel, self.loss_parallel))
        attention = ContextAttention(fine["context"], self.context_attention, shape.tensor) if shape.context > 1 else None
        pieces = tensor if self.sequence_parallel else None
        sequence = SequenceDimension(attention, pieces, self.loss_parallel) if attention or pieces else None
        if sequence:
            found.append(sequence)
        if names := tuple(name for name in ("context", "tensor") if self.loss_parallel and getattr(shape, name) > 1):
            found.append(CutLogits(fine[names], sequence))
        return found

    def shard_apart(self, module: nn.Module, shard: Callable[..., object]) -> set[nn.Parameter]:
        """Ranks of `expert` have different experts, so that theirs are sharded over the other dimensions."""
        if not self.experts:
            return set()
        parts = [part for part in module.modules() if part in self.experts.parts]
        if names := tuple(name for name in ("replicate", "shard") if name in (self.fine_mesh.mesh_dim_names or ())):
            for part in parts:
                shard(part, mesh=self.fine_mesh[names], reshard_after_forward=self.reshard_after_forward)
            return set()
        for part in filter(has_memory, parts):
            part.to(self.device)
        return {parameter for part in parts for parameter in part.parameters()}
