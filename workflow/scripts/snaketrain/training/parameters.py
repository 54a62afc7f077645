"""Which parameters are trained, their learning rates and weight decay, and the norm of their gradients."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import NotRequired, TypedDict

from torch import nn
from torch.optim import Optimizer

from snaketrain.config.schema.train import Group

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


def parameter_groups(name: str, module: nn.Module, weight_decay: float, groups: list[Group]) -> list[NamedGroup]:
    """The parameter groups of an optimizer; biases and norms, which have one dimension, never decay."""
    found: dict[tuple[float, float, int | None], list[str]] = {}
    for key, parameter in module.named_parameters():
        if parameter.requires_grad:
            number, group = next(((n, g) for n, g in enumerate(groups) if belongs(parameter, g, name, key)), (None, None))
            scale = group.rate_scale if group else 1.0
            decay = weight_decay if group is None or group.weight_decay is None else group.weight_decay
            apart = number if group and (group.optimizer or group.schedule) else None
            found.setdefault((scale, decay if parameter.ndim > 1 else 0.0, apart), []).append(key)
    if not found:
        raise SystemExit(f"train.freeze: nothing of the module `{name}` is left to train. Freeze less.")
    return [named_group(members, scale, decay, apart) for (scale, decay, apart), members in found.items()]


def named_group(members: list[str], scale: float, decay: float, apart: int | None) -> NamedGroup:
    group: NamedGroup = {"params": members, "weight_decay": decay, "rate_scale": scale}
    return group if apart is None else {**group, "setting": apart}


def belongs(parameter: nn.Parameter, group: Group, module: str, key: str) -> bool:
    return group.dimensions in (None, parameter.ndim) and matches(group.match, module, key)


def check_groups(modules: dict[str, nn.Module], groups: list[Group]) -> None:
    for group in groups:
        matched = [p for name, module in modules.items() for key, p in module.named_parameters() if belongs(p, group, name, key)]
        if not any(parameter.requires_grad for parameter in matched):
            of = f" of {group.dimensions} dimensions" if group.dimensions else ""
            what = "only frozen parameters match" if matched else f"no parameter{of} matches"
            raise SystemExit(f"train.groups: {what} `{group.match}`. {_some_names(modules)}")
        if group.weight_decay and all(parameter.ndim <= 1 for parameter in matched):
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
