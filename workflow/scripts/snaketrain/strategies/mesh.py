"""Ranks in a grid of up to six dimensions, each a way to share a training that is too large or too slow for fewer ranks."""

import gc
from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from snaketrain.config.sizes import is_used, option_errors
from snaketrain.models import ParameterGroups, Value
from snaketrain.models.weights import has_memory
from snaketrain.strategies.base import PRECISIONS, Keep, MakeOptimizer
from snaketrain.strategies.distributed import all_gather, gather_named
from snaketrain.strategies.fsdp import Dimension, MeshBase
from snaketrain.strategies.losses import LossSums, MicroBatches, Objective, weighted_loss
from snaketrain.strategies.pipeline import Pipelined, answer, record
from snaketrain.strategies.sequence import ContextAttention, SequenceDimension
from snaketrain.strategies.shards import OptimizerState, Parameters, clip_sharded, full_tensor, named_groups, named_state
from snaketrain.strategies.splitting import CutLogits, ExpertDimension, TensorDimension
from snaketrain.tasks.base import on_device

SEED_STEP = 1_000_000_009  # between the seeds of what draws random numbers
T = TypeVar("T")


class Mesh(MeshBase):
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

    def start(self) -> None:
        super().start()
        self.pipelines: dict[nn.Module, Pipelined] = {}
        self.stages_group = self.mesh["pipeline"].get_group() if self.shape.pipeline > 1 else None

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

    # --- the stages of a pipeline: ranks of `pipeline` compute different microbatches at the same time

    def shard_module(self, module: nn.Module) -> nn.Module:
        if self.stages_group:
            self.cut(module, self.stages_group)
        return super().shard_module(module)

    def cut(self, module: nn.Module, group: dist.ProcessGroup) -> None:
        """Leave this rank's stages in the module, which runs through all stages when it is called as a whole."""
        self.names = set(module.state_dict())
        # autocast keeps in float32 what passes between layers
        dtype = PRECISIONS[self.precision] if self.sharded_over else torch.float32
        self.pipelines[module] = pipelined = Pipelined(module, self.schedule, group, self.device, dtype)
        module.forward = pipelined.evaluate
        gc.collect()  # frees what other stages hold, which is in reference cycles

    def roots(self, module: nn.Module) -> list[nn.Module]:
        return [*self.pipelines[module].stages] if self.stages_group else super().roots(module)

    def adopt(self, module: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Optimizer]:
        if self.stages_group:
            raise SystemExit("train.task.use: wraps its modules itself, which cannot be cut into the stages of a pipeline. Use `ddp`.")
        return super().adopt(module, make_optimizer)

    def share_buffers(self, module: nn.Module) -> None:
        if not self.stages_group:  # stages have other buffers, but none that change: layers of language models
            super().share_buffers(module)

    # --- a step

    def forward_backward(self, objective: Objective, microbatches: MicroBatches, denominator: float) -> LossSums:
        if not self.stages_group:
            return super().forward_backward(objective, microbatches, denominator)
        if len(objective.modules) > 1:
            raise SystemExit("train.task.use: builds several modules, but a pipeline takes one. Use `fsdp`.")
        ((_, module),) = objective.modules.items()
        pipelined = self.pipelines[module]
        seed, sums = torch.initial_seed(), LossSums()
        scale = self.scaler.scale(torch.ones((), device=self.device))  # on all ranks, although the last alone needs it
        batches = [on_device(batch, self.device) for _, batch in microbatches]
        calls = [self.drawing(seed, number, record, objective, batch) for number, batch in enumerate(batches)]
        torch.manual_seed(seed + (len(calls) + 1 + pipelined.rank) * SEED_STEP)  # dropout differs between stages

        def compute(model: nn.Module, number: int) -> object:
            with self.autocast():
                outputs = model(*calls[number].arguments, **calls[number].named)  # ends here in all stages but the last
                returned = self.drawing(seed, number, answer, objective, batches[number], outputs)
            loss, weight = weighted_loss(returned, microbatches[number][0], denominator, sums)
            return loss * scale * weight * self.data_parallel_size  # FSDP averages gradients over ranks; ours are sums

        pipelined.train(calls, compute)
        return self.from_last(pipelined, sums)

    def drawing(self, seed: int, number: int, function: Callable[..., T], *arguments: object) -> T:
        """Call it with random numbers of the microbatch: a task that draws some draws the same when its call is recorded and answered."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed + (number + 1) * SEED_STEP)
            return function(*arguments)

    def from_last(self, pipelined: Pipelined, sums: LossSums) -> LossSums:
        """The losses, which only the last stage knows, on all ranks of the pipeline."""
        names = pipelined.broadcast_object(list(sums))  # each objective has its own
        values = torch.stack([sums[name].float() for name in names]) if sums else torch.empty(len(names), device=self.device)
        return dict(zip(names, pipelined.broadcast(values).unbind(), strict=True))

    def clip(self, module: nn.Module, optimizer: Optimizer, longest: float) -> Tensor:
        return clip_sharded(module.parameters(), longest, self.stages_group)

    # --- state: that of all stages together

    def weights(self, module: nn.Module) -> dict[str, Tensor]:
        if not self.stages_group:
            return super().weights(module)
        return gather_named({name: full_tensor(tensor).cpu() for name, tensor in module.state_dict().items()}, self.stages_group)

    def optimizer_state(self, module: nn.Module, optimizer: Optimizer, keep: Keep) -> OptimizerState:
        if not self.stages_group:
            return super().optimizer_state(module, optimizer, keep)
        parameters = dict(module.named_parameters())
        mine = named_state(optimizer, parameters, lambda value, _: full_tensor(value).cpu())
        return {"state": gather_named(mine, self.stages_group), "param_groups": self.param_groups(optimizer, parameters)}

    def param_groups(self, optimizer: Optimizer, parameters: Parameters) -> ParameterGroups:
        mine = named_groups(optimizer, parameters)
        return [group for share in all_gather(mine, self.stages_group) for group in share] if self.stages_group else mine

    def load_state(self, module: nn.Module, optimizer: Optimizer, weights: dict[str, Tensor], optimizer_state: OptimizerState) -> None:
        elsewhere = self.names - set(module.state_dict()) if self.stages_group else set()
        if missing := elsewhere - set(weights):
            raise SystemExit(f"the checkpoint has other weights than the model: {', '.join(sorted(missing)[:5])}. Train the run again.")
        mine = {name: tensor for name, tensor in weights.items() if name not in elsewhere}
        super().load_state(module, optimizer, mine, optimizer_state)


class TensorParallel(MeshBase):
    """Splits a model's matrices: `tensor` ranks work on the same examples, each with its part of every matrix.

    If there are more ranks, the batch is split across such groups: each group holds a full model, or with `shard: true` a shard
    of it, as in fsdp.

    `plan`: a style for each pattern of module names, `{"*.fc1": colwise, "*.fc2": rowwise}`; none: the model's own plan.
    """

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
