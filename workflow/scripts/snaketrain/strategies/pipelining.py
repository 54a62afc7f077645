"""The `pipeline` dimension of a mesh: ranks that each hold a stage of the model, and compute different microbatches at the same time."""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from snaketrain.models.call_types import ParameterGroups
from snaketrain.strategies.base import (
    PRECISIONS,
    Keep,
    LossSums,
    MakeOptimizer,
    MicroBatches,
    Objective,
    add_up,
    losses_and_figures,
    nan_if_infinite,
    total,
)
from snaketrain.strategies.mesh_base import MeshBase
from snaketrain.strategies.optimizer_state import OptimizerState, Parameters, named_groups, named_state
from snaketrain.strategies.pipeline_runs import Pipelined, all_gather, answer, gather, record
from snaketrain.strategies.shards import clip_sharded, full_tensor
from snaketrain.tasks.base import on_device

SEED_STEP = 1_000_000_009  # between the seeds of what draws random numbers
T = TypeVar("T")


class Pipelining(MeshBase):
    """Without the dimension, it is a MeshBase."""

    schedule = "1f1b"

    def start(self) -> None:
        super().start()
        self.pipelines: dict[nn.Module, Pipelined] = {}
        self.stages_group = self.mesh["pipeline"].get_group() if self.shape.pipeline > 1 else None

    # --- the module

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
                parts, figures = losses_and_figures(self.drawing(seed, number, answer, objective, batches[number], outputs))
            loss, filler = total(parts), microbatches[number][0].filler
            add_up(sums, {name: torch.zeros_like(each) if filler else each.detach() for name, each in (parts | figures).items()})
            weight = nan_if_infinite(0.0 if filler else 1.0 / denominator, loss)
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
        mine = {name: full_tensor(tensor).cpu() for name, tensor in module.state_dict().items()}
        return {name: tensor for share in gather(mine, self.stages_group) for name, tensor in share.items()}

    def optimizer_state(self, module: nn.Module, optimizer: Optimizer, keep: Keep) -> OptimizerState:
        if not self.stages_group:
            return super().optimizer_state(module, optimizer, keep)
        parameters = dict(module.named_parameters())
        mine = named_state(optimizer, parameters, lambda value, _: full_tensor(value).cpu())
        state = {name: entries for share in gather(mine, self.stages_group) for name, entries in share.items()}
        return {"state": state, "param_groups": self.param_groups(optimizer, parameters)}

    def param_groups(self, optimizer: Optimizer, parameters: Parameters) -> ParameterGroups:
        mine = named_groups(optimizer, parameters)
        return [group for share in all_gather(mine, self.stages_group) for group in share] if self.stages_group else mine

    def load_state(self, module: nn.Module, optimizer: Optimizer, weights: dict[str, Tensor], optimizer_state: OptimizerState) -> None:
        elsewhere = self.names - set(module.state_dict()) if self.stages_group else set()
        if missing := elsewhere - set(weights):
            raise SystemExit(f"the checkpoint has other weights than the model: {', '.join(sorted(missing)[:5])}. Train the run again.")
        mine = {name: tensor for name, tensor in weights.items() if name not in elsewhere}
        super().load_state(module, optimizer, mine, optimizer_state)
