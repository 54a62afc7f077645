"""The weights and the optimizer state that one rank holds, by full name, as torch.distributed.checkpoint saves and fills them."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.optim import Optimizer

from snaketrain.models import Kwargs, ParameterGroups
from snaketrain.models.adapters import frozen_names
from snaketrain.models.weights import tied_names
from snaketrain.strategies.base import Strategy
from snaketrain.strategies.shards import OptimizerState, Parameters, ParameterState, local_optimizer

# reading needs no process group, since each rank reads for itself
warnings.filterwarnings("ignore", message="torch.distributed is disabled")

Stored: TypeAlias = dict[str, TensorStorageMetadata | None]  # what a folder holds, by name; None: a number


@dataclass(frozen=True)
class RankState:
    """Of one module. Tensors are DTensors where ranks hold shards; what several ranks hold is saved once."""

    weights: dict[str, Tensor]
    moments: dict[str, object]  # `<parameter>.<key>`
    param_groups: ParameterGroups  # as torch types the groups of an optimizer


def held(strategy: Strategy, module: nn.Module, optimizer: Optimizer) -> RankState:
    plain = strategy.unwrapped(module)
    weights = own_weights(plain)  # first: FSDP2 frees gathered parameters only when it is asked for its state
    parameters, states = dict(plain.named_parameters()), local_optimizer(optimizer).state
    moments = {f"{name}.{key}": value for name, parameter in parameters.items() for key, value in states.get(parameter, {}).items()}
    return RankState(weights, moments, strategy.param_groups(optimizer, parameters))


def gathered(strategy: Strategy, module: nn.Module, optimizer: Optimizer) -> RankState:
    """Everything on rank 0, of a strategy whose shards torch.distributed.checkpoint does not know."""
    weights, saved = strategy.weights(module), strategy.optimizer_state(module, optimizer, Tensor.cpu)
    if strategy.rank > 0:
        return RankState({}, {}, saved["param_groups"])
    tied = tied_names(strategy.unwrapped(module))
    moments = {f"{name}.{key}": value for name, state in saved["state"].items() for key, value in state.items()}
    return RankState({name: tensor for name, tensor in weights.items() if name not in tied}, moments, saved["param_groups"])


def own_weights(plain: nn.Module) -> dict[str, Tensor]:
    """The module's own tensors, tied ones under their first name alone; with adapters, those that are not frozen."""
    found = plain.state_dict()
    left_out = {*tied_names(plain), *frozen_names(plain)}
    return {name: tensor for name, tensor in found.items() if name not in left_out}


def averaged_tensors(plain: nn.Module) -> dict[str, Tensor]:
    """What an average of the weights is of: also of buffers such as the statistics of a BatchNorm, not of counters."""
    return {name: tensor for name, tensor in own_weights(plain).items() if tensor.is_floating_point()}


def stored(folder: Path, module: str = "") -> Stored:
    """What a folder holds of a module; without one, all that it holds, by full name."""
    prefix, found = f"{module}." if module else "", FileSystemReader(folder).read_metadata().state_dict_metadata
    return {
        name.removeprefix(prefix): each if isinstance(each, TensorStorageMetadata) else None
        for name, each in found.items()
        if name.startswith(prefix)
    }


def fill(folder: Path, module: str, room: Kwargs) -> Kwargs:
    """Read into these tensors, on each rank what it holds; numbers are replaced."""
    content = {f"{module}.{name}": value for name, value in room.items()}
    if content:
        load(content, storage_reader=FileSystemReader(folder), no_dist=True)
    return {name.removeprefix(f"{module}."): value for name, value in content.items()}


def empty(names: Stored) -> Kwargs:
    """Room for whole tensors."""
    return {name: torch.empty(each.size, dtype=each.properties.dtype) if each else 0 for name, each in names.items()}


def empty_moments(optimizer: Optimizer, parameters: Parameters, names: Stored) -> dict[str, object]:
    """Room for the state of the parameters that this rank's optimizer steps, sharded as they are."""
    stepped = {id(parameter) for group in local_optimizer(optimizer).param_groups for parameter in group["params"]}
    found: dict[str, object] = {}
    for name, each in names.items():
        parameter = parameters.get(name.rpartition(".")[0])
        if parameter is None or id(parameter) not in stepped:
            continue
        if each and each.size == parameter.shape:
            found[name] = torch.empty_like(parameter, dtype=each.properties.dtype, requires_grad=False)
        else:
            found |= empty({name: each})  # such as a count of steps
    return found


def by_parameter(moments: dict[str, object], param_groups: ParameterGroups) -> OptimizerState:
    state: dict[str, ParameterState] = {}
    for name, value in moments.items():
        parameter, _, key = name.rpartition(".")
        state.setdefault(parameter, {})[key] = value
    return {"state": state, "param_groups": param_groups}
