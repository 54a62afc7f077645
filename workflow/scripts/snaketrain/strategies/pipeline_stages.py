"""Cuts a transformers model into the stages of a pipeline.

A stage is the model itself, with placeholders for the layers of other stages. So each runs the model's own forward pass on the task's
own arguments, which makes masks and positions everywhere alike, and parameters keep their names.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from snaketrain.models.call_types import Value
from snaketrain.models.weight_files import tied_names

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
        empty(part, layout, set(shares[number]), first=number == 0, last=number == count - 1)
        entrance = layout.base_of(part).get_submodule(layout.embedding) if number else None
        stages.append(Stage(part, entrance if isinstance(entrance, Entrance) else None, dtype))
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
    empty(part, layout, set(), first=False, last=False)
    base = layout.base_of(part)
    entrance = base.get_submodule(layout.embedding)
    assert isinstance(entrance, Entrance)
    entrance.received = torch.arange(8.0).view(2, 4)
    try:
        base(torch.ones(1, 2, dtype=torch.long), use_cache=False)
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


def empty(model: nn.Module, layout: Layout, layers: set[int], first: bool, last: bool) -> None:
    """Put placeholders for what is not in these layers, nor before the first or after the last."""
    base = layout.base_of(model)
    listed = base.get_submodule(layout.layers)
    assert isinstance(listed, nn.ModuleList)
    for number in set(range(len(listed))) - layers:
        listed[number] = Passage()
    if not first:
        setattr(base, layout.embedding, Entrance())
    if last:
        return
    setattr(base, layout.norm, Exit())
    for name, head in model.named_children():
        if name != layout.base and layout.base and any(True for _ in head.parameters()):
            setattr(model, name, nn.Identity())
