"""Runs the stages of a pipeline: in training by a schedule of torch.distributed.pipelining, in an evaluation one after the other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleZBVZeroBubble
from torch.utils._pytree import tree_leaves, tree_map

from snaketrain.data.loading.training_data import Batch
from snaketrain.models.call_types import Args, Kwargs, Value
from snaketrain.strategies.base import Objective
from snaketrain.strategies.pipeline_stages import INPUT, Stage, cut, hidden_size
from snaketrain.tasks.base import Returned

# --- A task's call of its model, recorded before a pipeline runs and answered when the last stage has its outputs.
#
# So a task need not know that its model is elsewhere: every process of the pipeline has the whole batch, and learns from the recording
# what its stage of the model is called with.

Output = Value  # of a model: any type that its task knows


@dataclass(frozen=True)
class Call:
    arguments: Args  # as the task gives them
    named: Kwargs

    @property
    def tokens(self) -> int:
        """How many hidden states are exchanged."""
        ids = self.named.get(INPUT, self.arguments[0] if self.arguments else None)
        if not isinstance(ids, Tensor):
            raise SystemExit(f"train.task.use: calls its model without `{INPUT}`, by which a pipeline cuts it. Use `fsdp`.")
        return ids.numel()


class Recorded(BaseException):
    """The task has called its model, whose outputs are not known yet."""

    def __init__(self, call: Call):
        self.call = call


class Stand(nn.Module):
    """Stands in for the model when the loss is computed: records the call, or returns the outputs."""

    def __init__(self, model: nn.Module, outputs: Output = None):
        super().__init__()
        object.__setattr__(self, "_model", model)  # not as a part of this module
        self.outputs = outputs
        self.train(model.training)

    def forward(self, *arguments: object, **named: object) -> Output:
        if self.outputs is None:
            raise Recorded(Call(arguments, named))
        outputs, self.outputs = self.outputs, None
        return outputs

    def __getattr__(self, name: str) -> Value:
        try:
            return super().__getattr__(name)
        except AttributeError:
            found = getattr(self._model, name)
        if isinstance(found, nn.Module | Tensor) or callable(found):
            raise SystemExit(f"train.task.use: uses `{name}` of its model, whose parts are on several processes in a pipeline. Use `fsdp`.")
        return found


def record(objective: Objective, batch: Batch) -> Call:
    """What the task calls its model with."""
    ((name, model),) = objective.modules.items()
    try:
        objective.loss({name: Stand(model)}, batch)
    except Recorded as recorded:
        return recorded.call
    raise SystemExit("train.task.use: computes a loss without calling its model, which a pipeline cannot train. Use `fsdp`.")


def answer(objective: Objective, batch: Batch, outputs: Output) -> Returned:
    """The task's losses, of the outputs of the recorded call."""
    ((name, model),) = objective.modules.items()
    try:
        return objective.loss({name: Stand(model, outputs)}, batch)
    except Recorded:
        raise SystemExit("train.task.use: calls its model more than once for a loss, which a pipeline cannot train. Use `fsdp`.") from None


CLASSES: dict[str, Value] = {"1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B, "zbv": ScheduleZBVZeroBubble}
ONLY = torch.zeros(1, dtype=torch.long)  # the number of a microbatch where there is one
T = TypeVar("T")


def owners(schedule: str, processes: int) -> list[int]:
    """The process of each stage. Interleaved: 0 1 0 1; ZBV, like its name: 0 1 1 0."""
    once = list(range(processes))
    return {"1f1b": once, "interleaved": [*once, *once], "zbv": [*once, *reversed(once)]}[schedule]


class Pipelined:
    """The stages of one model that this process has, connected to those of the others in its group."""

    def __init__(self, model: nn.Module, schedule: str, group: dist.ProcessGroup, device: torch.device, dtype: torch.dtype):
        self.model, self.group, self.device, self.dtype = model, group, device, dtype
        self.rank, self.schedule = dist.get_rank(group), schedule
        self.owners = owners(schedule, dist.get_world_size(group))
        self.numbers = [number for number, owner in enumerate(self.owners) if owner == self.rank]
        self.width = hidden_size(model)
        self.stages = cut(model, len(self.owners), self.numbers, dtype)
        self.length = 0  # rows of a message
        self._schedules: dict[int, Value] = {}  # by the number of microbatches

    @property
    def has_last(self) -> bool:
        return self.owners[-1] == self.rank

    def train(self, calls: list[Call], compute: Callable[[nn.Module, int], object]) -> None:
        """Leave gradients. `compute`: what to compute of the stage's model and a microbatch; in the last stage a loss."""
        self._make_room(max(call.tokens for call in calls))
        numbers = torch.arange(len(calls))
        for stage in self.stages:
            self._set(stage, compute, self.length)
        first = (numbers,) if 0 in self.numbers else ()
        try:
            self._schedule(len(calls)).step(*first, number=numbers, target=numbers if self.has_last else None, return_outputs=False)
        except RuntimeError as error:  # torch describes tensors, not what is wrong
            raise error.__cause__ if isinstance(error.__cause__, Exception) else error from None

    def _make_room(self, tokens: int) -> None:
        """Messages become longer where a batch needs it, never shorter."""
        if tokens > self.length:
            self.length = tokens
            self._schedules.clear()

    def _set(self, stage: Stage, compute: Callable[[nn.Module, int], object], length: int) -> None:
        stage.compute, stage.length = compute, length
        if stage.training != self.model.training:
            stage.train(self.model.training)

    def _schedule(self, microbatches: int) -> Value:
        if microbatches not in self._schedules:
            stages = [self._stage(number, stage) for number, stage in zip(self.numbers, self.stages, strict=True)]
            try:
                self._schedules[microbatches] = CLASSES[self.schedule](
                    stages[0] if self.schedule == "1f1b" else stages, microbatches, loss_fn=lambda loss, _: loss, scale_grads=False
                )
            except (ValueError, RuntimeError) as error:
                raise SystemExit(
                    f"train.accumulate ({microbatches}) or another setting does not fit the pipeline schedule {self.schedule}: {error}"
                ) from None
        return self._schedules[microbatches]

    def _stage(self, number: int, stage: Stage) -> PipelineStage:
        message = torch.empty(self.length, self.width, dtype=self.dtype, device="meta", requires_grad=True)
        last = number == len(self.owners) - 1
        return PipelineStage(
            stage, number, len(self.owners), self.device, group=self.group,
            input_args=message if number else ONLY,
            output_args=torch.zeros((), device="meta", requires_grad=True) if last else message,
        )  # fmt: skip

    @torch.no_grad()
    def evaluate(self, *arguments: object, **named: object) -> Output:
        """The model's outputs, on all processes of the group."""
        call = Call(arguments, named)
        shape, passed = (call.tokens, self.width), torch.empty(0)
        for number, stage in zip(self.numbers, self.stages, strict=True):
            before, after = self.owners[number - 1 : number], self.owners[number + 1 : number + 2]
            self._set(stage, lambda model, _: model(*call.arguments, **call.named), call.tokens)
            if before and before != [self.rank]:
                passed = torch.empty(shape, dtype=self.dtype, device=self.device)
                dist.recv(passed, group=self.group, group_src=before[0])
            passed = stage(passed, 0)
            free(stage)
            if after and after != [self.rank]:
                dist.send(passed.contiguous(), group=self.group, group_dst=after[0])
        return self._broadcast_outputs(passed if self.has_last else None)

    def _broadcast_outputs(self, outputs: Output) -> Output:
        """First their layout, then the tensors."""
        layout = self.broadcast_object(tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, outputs))
        if not self.has_last:
            outputs = tree_map(lambda leaf: torch.empty_like(leaf, device=self.device) if isinstance(leaf, Tensor) else leaf, layout)
        for leaf in tree_leaves(outputs):
            if isinstance(leaf, Tensor):
                self.broadcast(leaf)
        return outputs

    # --- between the processes of the pipeline

    def broadcast(self, tensor: Tensor) -> Tensor:
        """From the process of the last stage."""
        dist.broadcast(tensor, group=self.group, group_src=self.owners[-1])
        return tensor

    def broadcast_object(self, item: T) -> T:
        items = [item]
        dist.broadcast_object_list(items, group=self.group, group_src=self.owners[-1], device=torch.device("cpu"))
        return items[0]


def all_gather(item: T, group: dist.ProcessGroup) -> list[T]:
    items = [item] * dist.get_world_size(group)
    dist.all_gather_object(items, item, group=group)
    return items


def gather(item: T, group: dist.ProcessGroup) -> list[T]:
    """On the first process; nothing on the others."""
    items = [item] * dist.get_world_size(group) if dist.get_rank(group) == 0 else None
    dist.gather_object(item, items, group=group, group_dst=0)
    return items or []


def free(stage: nn.Module) -> None:
    """The parameters that FSDP has gathered."""
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
