"""Cuts a transformers model into the stages of a pipeline, and runs them.

A stage is the model itself, with placeholders for the layers of other stages. So each runs the model's own forward pass on the task's
own arguments, which makes masks and positions everywhere alike, and parameters keep their names.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleZBVZeroBubble
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves, tree_map

from snaketrain.data.loading.training_data import Batch
from snaketrain.models import Args, Kwargs, Value
from snaketrain.models.weights import tied_names
from snaketrain.strategies.losses import Objective
from snaketrain.tasks.base import Returned

INPUT = "input_ids"  # the argument that a model embeds


class Left(BaseException):
    """The hidden state has left a stage, which skips what the model would do after its layers."""

    def __init__(self, hidden: Tensor):
        self.hidden = hidden


class Entrance(nn.Module):
    """In place of the embedding: what the stage before has sent."""

    received = torch.empty(0)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.received[: tokens.numel()].view(*tokens.shape, -1)


class Passage(nn.Module):
    """In place of a layer of another stage."""

    def forward(self, hidden: Tensor, *_: object, **__: object) -> Tensor:
        return hidden


class Exit(nn.Module):
    """In place of the norm after the last layer, in all stages but the last."""

    def forward(self, hidden: Tensor) -> Tensor:
        raise Left(hidden)


@dataclass(frozen=True)
class Layout:
    """The names of a model's parts: the embedding, the list of layers and the norm after them are in `base`."""

    base: str  # empty where the model has no head
    embedding: str
    layers: str
    norm: str

    def base_of(self, model: nn.Module) -> nn.Module:
        return model.get_submodule(self.base)


class Stage(nn.Module):
    """What one stage computes of a microbatch: all parameters are in `model`.

    Hidden states are exchanged as rows, a token each, filled up to `length`: microbatches differ in shape, messages may not.
    """

    compute: Callable[[nn.Module, int], object]  # of the model and the microbatch's number; set for each step
    length = 0

    def __init__(self, model: nn.Module, entrance: Entrance | None, dtype: torch.dtype):
        super().__init__()
        self.model, self.entrance, self.dtype = model, entrance, dtype

    def forward(self, received: Tensor, number: Tensor | int) -> object:
        if self.entrance:
            self.entrance.received = received
        try:
            return self.compute(self.model, int(number))
        except Left as left:
            rows = left.hidden.flatten(0, -2)
            return pad(rows, (0, 0, 0, self.length - len(rows))).to(self.dtype)


def cut(model: nn.Module, count: int, mine: list[int], dtype: torch.dtype) -> list[Stage]:
    """The stages with these numbers, which exchange hidden states of `dtype`. What other stages hold is removed from the model."""
    layout = layout_of(model)
    check_layout(model, layout)
    config: Value = layout.base_of(model).config
    config.use_cache = False  # otherwise an evaluation would send keys and values to all stages, with its outputs
    layers = layout.base_of(model).get_submodule(layout.layers)
    assert isinstance(layers, nn.ModuleList)
    shares = share_layers(len(layers), count)
    stages = []
    for number in mine:
        part = skeleton(model, layout)
        entrance = empty(part, layout, set(shares[number]), first=number == 0, last=number == count - 1)
        stages.append(Stage(part, entrance, dtype))
    empty(model, layout, {layer for number in mine for layer in shares[number]}, first=0 in mine, last=count - 1 in mine)
    return stages


def share_layers(layers: int, stages: int) -> list[range]:
    """Neighbouring layers for each stage. The middle ones get what is left over, as the outer ones hold the embedding and the head."""
    if layers < stages:
        raise SystemExit(f"train.strategy.arguments: {stages} stages are more than the {layers} layers of the model: use fewer processes.")
    counts = [layers // stages] * stages
    for stage in sorted(range(stages), key=lambda stage: abs(2 * stage - stages + 1))[: layers % stages]:
        counts[stage] += 1
    return [range(sum(counts[:stage]), sum(counts[: stage + 1])) for stage in range(stages)]


def layout_of(model: nn.Module) -> Layout:
    """From transformers' own plan, such as Llama's: embed_tokens, layers, norm."""
    base = getattr(model, "base_model", model)
    plan = getattr(getattr(base, "config", None), "base_model_pp_plan", None) or {}
    names = list(plan)
    if len(names) != 3 or not isinstance(getattr(base, names[1], None), nn.ModuleList) or plan[names[0]][0] != [INPUT]:
        raise SystemExit(
            f"train.strategy: {type(model).__name__} has no plan for a pipeline (`base_model_pp_plan` of its configuration: embedding, layers, "
            "norm), as Llama, Mistral and Qwen have. Use `fsdp`."
        )
    return Layout("" if base is model else str(model.base_model_prefix), *names)


def hidden_size(model: nn.Module) -> int:
    layout = layout_of(model)
    embedding = layout.base_of(model).get_submodule(layout.embedding)
    return int(next(embedding.parameters()).shape[1])


def check_layout(model: nn.Module, layout: Layout) -> None:
    """Exit with a message if parts of the model cannot run on different processes."""
    if tied := tied_names(model):
        raise SystemExit(
            f"model: {' and '.join(*tied.items())} are tied, but are needed on the first and the last process of a pipeline. Use `fsdp`, or set "
            "model.arguments.tie_word_embeddings: false for a model without pretrained weights."
        )
    base = layout.base_of(model)
    own = [name for name, _ in base.named_parameters() if name.split(".")[0] not in (layout.embedding, layout.layers, layout.norm)]
    if own or not passes_unchanged(model, layout):
        what = f"`{own[0]}` belongs to no layer" if own else "something happens between embedding, layers and norm"
        raise SystemExit(f"train.strategy: {type(model).__name__} cannot be cut into the stages of a pipeline: {what}. Use `fsdp`.")


@torch.no_grad()
def passes_unchanged(model: nn.Module, layout: Layout) -> bool:
    """Whether hidden states reach the first layer, and leave the last one, as they are."""
    part = skeleton(model, layout)
    entrance = empty(part, layout, set(), first=False, last=False)
    assert entrance, "it is not the first stage"
    entrance.received = torch.arange(8.0).view(2, 4)
    try:
        layout.base_of(part)(torch.ones(1, 2, dtype=torch.long), use_cache=False)
    except Left as left:
        return torch.equal(left.hidden.flatten(0, -2), torch.arange(8.0).view(2, 4))
    return False


def skeleton(model: nn.Module, layout: Layout) -> nn.Module:
    """A copy of the model whose parts can be replaced; layers, embedding, norm and head are the same objects."""
    whole = shallow(model)
    if layout.base:
        setattr(whole, layout.base, shallow(layout.base_of(model)))
    base = layout.base_of(whole)
    setattr(base, layout.layers, shallow(base.get_submodule(layout.layers)))
    return whole


def shallow(module: nn.Module) -> nn.Module:
    """The same parts in dictionaries of its own."""
    copied = copy.copy(module)
    for name, value in vars(module).items():
        if isinstance(value, dict):
            copied.__dict__[name] = copy.copy(value)
    return copied


def empty(model: nn.Module, layout: Layout, layers: set[int], first: bool, last: bool) -> Entrance | None:
    """Put placeholders for what is not in these layers, nor before the first or after the last; returns that of the embedding."""
    base = layout.base_of(model)
    listed = base.get_submodule(layout.layers)
    assert isinstance(listed, nn.ModuleList)
    for number in set(range(len(listed))) - layers:
        listed[number] = Passage()
    entrance = None if first else Entrance()
    if entrance:
        setattr(base, layout.embedding, entrance)
    if not last:
        setattr(base, layout.norm, Exit())
        for name, head in model.named_children():
            if name != layout.base and layout.base and any(True for _ in head.parameters()):
                setattr(model, name, nn.Identity())
    return entrance


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


# --- The stages at work: in training by a schedule of torch.distributed.pipelining, in an evaluation one after the other.

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
        if (tokens := max(call.tokens for call in calls)) > self.length:  # messages become longer where a batch needs it, never shorter
            self.length = tokens
            self._schedules.clear()
        numbers = torch.arange(len(calls))
        for stage in self.stages:
            self._set(stage, compute, self.length)
        first = (numbers,) if 0 in self.numbers else ()
        try:
            self._schedule(len(calls)).step(*first, number=numbers, target=numbers if self.has_last else None, return_outputs=False)
        except RuntimeError as error:  # torch describes tensors, not what is wrong
            raise error.__cause__ if isinstance(error.__cause__, Exception) else error from None

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


def free(stage: nn.Module) -> None:
    """The parameters that FSDP has gathered."""
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
