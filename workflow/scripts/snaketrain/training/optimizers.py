"""Builds optimizers over groups of named parameters, in the fastest implementation that torch has."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, NotRequired, TypedDict

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from snaketrain.config.references import load
from snaketrain.config.schema import ARGUMENTS_WITH_SETTINGS, Train, Use
from snaketrain.config.schema.train import NEEDS_CLOSURE, Group
from snaketrain.runtime.credentials import resolved

# --- Which parameters are trained, their learning rates and weight decay, and the norm of their gradients.

NO_GROUP = -1


class NamedGroup(TypedDict):
    """A parameter group with names in place of parameters."""

    params: list[str]
    weight_decay: float
    rate_scale: float
    setting: NotRequired[int]  # the number in `train.groups` of one with an optimizer or a schedule of its own


def freeze(modules: dict[str, nn.Module], patterns: list[str]) -> None:
    for pattern in patterns:
        matched = [p for name, module in modules.items() for key, p in module.named_parameters() if matches(pattern, name, key)]
        if not matched:
            raise SystemExit(f"train.freeze: no parameter matches `{pattern}`. {_some_names(modules)}")
        for parameter in matched:
            parameter.requires_grad_(False)


def parameter_groups(name: str, module: nn.Module, weight_decay: float, groups: list[Group], decay_all: bool = False) -> list[NamedGroup]:
    """The parameter groups of an optimizer; biases and norms, which have one dimension, decay only with `decay_all`."""
    found: dict[tuple[float, float, int | None], list[str]] = {}
    for key, parameter in module.named_parameters():
        if parameter.requires_grad:
            number, group = next(((n, g) for n, g in enumerate(groups) if belongs(parameter, g, name, key)), (None, None))
            scale = group.rate_scale if group else 1.0
            decay = weight_decay if group is None or group.weight_decay is None else group.weight_decay
            apart = number if group and (group.optimizer or group.schedule) else None
            found.setdefault((scale, decay if decay_all or parameter.ndim > 1 else 0.0, apart), []).append(key)
    if not found:
        raise SystemExit(
            f"train.freeze: nothing of the module `{name}` is left to train. Freeze less, or leave it out of the task's `objectives` if it is only "
            "compared with."
        )
    named_groups: list[NamedGroup] = []
    for (scale, decay, apart), members in found.items():
        named_groups.append({"params": members, "weight_decay": decay, "rate_scale": scale})
        if apart is not None:
            named_groups[-1]["setting"] = apart
    return named_groups


def belongs(parameter: nn.Parameter, group: Group, module: str, key: str) -> bool:
    return group.dimensions in (None, parameter.ndim) and matches(group.match, module, key)


def check_groups(modules: dict[str, nn.Module], groups: list[Group], decay_all: bool = False) -> None:
    for group in groups:
        matched = [p for name, module in modules.items() for key, p in module.named_parameters() if belongs(p, group, name, key)]
        if not any(parameter.requires_grad for parameter in matched):
            of = f" of {group.dimensions} dimensions" if group.dimensions else ""
            what = "only frozen parameters match" if matched else f"no parameter{of} matches"
            raise SystemExit(f"train.groups: {what} `{group.match}`. {_some_names(modules)}")
        if group.weight_decay and not decay_all and all(parameter.ndim <= 1 for parameter in matched):
            raise SystemExit(
                f"train.groups: all parameters that match `{group.match}` have one dimension, so that no weight decays. Remove its weight_decay."
            )


def set_rate(optimizer: Optimizer, rate: float, of_groups: Mapping[int, float] = MappingProxyType({})) -> None:
    """`of_groups`: the rates of groups with a schedule of their own."""
    for group in optimizer.param_groups:
        group["lr"] = of_groups.get(group.get("setting", NO_GROUP), rate) * group.get("rate_scale", 1.0)


def matches(pattern: str, module: str, key: str) -> bool:
    """A pattern matches a parameter's name in its module, or that name with the module's name in front."""
    return fnmatchcase(key, pattern) or fnmatchcase(f"{module}.{key}", pattern)


def _some_names(modules: dict[str, nn.Module]) -> str:
    names = [key for module in modules.values() for key, _ in module.named_parameters()]
    shown = names if len(names) <= 6 else [*names[:3], "...", *names[-3:]]
    return f"There are {len(names)}: {', '.join(shown)}."


# --- Several optimizers of one module as one, such as Muon for its matrices and AdamW for the rest.


class CombinedOptimizer(Optimizer):
    """Its parameter groups and its state are those of its optimizers, in order."""

    def __init__(self, optimizers: Sequence[Optimizer]):
        self.optimizers = optimizers
        super().__init__([group for optimizer in optimizers for group in optimizer.param_groups], {})
        for optimizer in optimizers:
            self.state.update(optimizer.state)
        self.share()

    def share(self) -> None:
        """Let all hold the same groups, whose rates the trainer sets, and the same state, which checkpoints save."""
        groups = iter(self.param_groups)
        for optimizer in self.optimizers:
            optimizer.__setstate__({"param_groups": [next(groups) for _ in optimizer.param_groups], "state": self.state})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # torch's has overloads
        for optimizer in self.optimizers:
            optimizer.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)  # which makes new groups and a new state
        self.share()


Sharded = Callable[..., Optimizer]
OptimizerGroup = dict[str, Any]  # as optimizers take it: parameters and their options
FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)  # on CPUs and GPUs alike


def optimizer_of(
    train: Train, groups: list[NamedGroup], parameters: dict[str, nn.Parameter], sharded: Sharded | None = None, **options: object
) -> Optimizer:
    """The optimizer of parameters under their names in the plain module; or `sharded`, which takes its groups, class and arguments."""
    by_setting: dict[int | None, list[OptimizerGroup]] = {}
    for group in groups:
        number = group.get("setting")
        own = number if number is not None and train.groups[number].optimizer else None
        held = [parameters[key] for key in group["params"] if key in parameters]  # other stages of a pipeline hold others
        by_setting.setdefault(own, []).append({**group, "params": held})
    if sharded and len(by_setting) > 1:
        raise SystemExit(
            "train.groups: a strategy that shares one optimizer among the processes cannot use several for one module. Remove `optimizer` "
            "from the groups, or use ddp or fsdp."
        )
    made = [one_optimizer(*named(train, number), members, train.learning_rate, sharded, options) for number, members in by_setting.items()]
    return made[0] if len(made) == 1 else CombinedOptimizer(made)


def nothing_to_update() -> Optimizer:
    """The optimizer of a module whose parameters are all frozen."""
    return torch.optim.SGD([{"params": []}], lr=0.0)


def named(train: Train, number: int | None) -> tuple[Use, str]:
    """The setting of an optimizer, and its name."""
    if number is not None and (own := train.groups[number].optimizer):
        return own, f"train.groups.{number}.optimizer"
    return train.optimizer, "train.optimizer"


def one_optimizer(
    setting: Use, where: str, members: list[OptimizerGroup], rate: float, sharded: Sharded | None, options: dict[str, object]
) -> Optimizer:
    made, given = load(setting.use), resolved(setting.arguments)
    for name in ARGUMENTS_WITH_SETTINGS:
        if name in given:
            raise SystemExit(f"{where}.arguments.{name}: is set by {ARGUMENTS_WITH_SETTINGS[name]}. Set that instead.")
    step = getattr(made, "step", None)  # a function that makes an optimizer has none
    closure = inspect.signature(step).parameters.get("closure") if step else None
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise SystemExit(f"{where}.use: {setting.use} {NEEDS_CLOSURE}")
    arguments = {"lr": rate, **given}
    if made in FUSED and not {"fused", "foreach"} & set(given):  # all parameters in one call, which torch by itself does not choose
        members, arguments = by_mesh(members), {"fused": True, **arguments}
    try:
        optimizer: Optimizer = sharded(members, made, **arguments, **options) if sharded else made(members, **arguments)
    except ValueError as error:
        raise SystemExit(f"{where}: {setting.use}: {error}. Correct its arguments, or the parameters that it gets.") from error
    if not isinstance(optimizer, Optimizer):
        what = "nothing" if optimizer is None else f"a {type(optimizer).__name__}"
        raise SystemExit(
            f"{where}.use: `{setting.use}` returns {what}, not an optimizer. Name a class derived from torch.optim.Optimizer, or a function "
            "that returns one."
        )
    given_to_it = {id(parameter) for group in members for parameter in group["params"]}
    kept = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not sharded and (lost := given_to_it - kept):
        raise SystemExit(
            f"{where}.use: `{setting.use}` leaves out {len(lost)} of the {len(given_to_it)} parameters that it is given, which would not be learnt. "
            "Pass them all to the optimizer, and name those that stay as they are in train.freeze."
        )
    return optimizer


def by_mesh(groups: list[OptimizerGroup]) -> list[OptimizerGroup]:
    """Groups whose parameters are sharded over one device mesh each, or not at all, since a fused optimizer takes a group in one call."""
    found: list[OptimizerGroup] = []
    for group in groups:
        alike: dict[DeviceMesh | None, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            alike.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
        found += [{**group, "params": members} for members in alike.values() or [[]]]  # a stage of a pipeline may have none
    return found
