"""What learns: a task's modules as the strategy wrapped them, and their optimizers."""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from torch import nn

from snaketrain.config.references import load
from snaketrain.config.schema import Model, Train
from snaketrain.models.blocks import compile_blocks, recompute_activations
from snaketrain.models.without_memory import without_memory
from snaketrain.tasks.base import Task
from snaketrain.training.initial_weights import start_from
from snaketrain.training.optimizers import optimizer_of
from snaketrain.training.parameters import check_groups, freeze, parameter_groups


@dataclass
class Learner:
    task: Task
    strategy: Any
    modules: dict[str, nn.Module]
    optimizers: dict[str, Any]
    clip_norm: float | None

    def plain_modules(self) -> dict[str, nn.Module]:
        return {name: self.strategy.unwrapped(module) for name, module in self.modules.items()}

    def learning(self, names: list[str]) -> dict[str, nn.Module]:
        """All modules, of which the named ones pass their gradients on to the other processes."""
        return self.plain_modules() | {name: self.modules[name] for name in names}


class DataInfo(dict):
    """What is known of the data, and a plain word where a task needs what is not."""

    def __missing__(self, name: str) -> Any:
        raise SystemExit(
            f"train.task: needs `{name}`, which is not known of this data. Name another task; or if the data is a dataset class, "
            f"give it a method `facts` that returns a dictionary with `{name}`."
        )


def make_task(train: Train) -> Task:
    return load(train.task.use, "tasks")(**train.task.arguments)


def build(
    task: Task, train: Train, model: Model, weights: Path | None, facts: dict[str, Any], initial: Path | None = None, builds: bool = True
) -> dict[str, nn.Module]:
    """The task's modules on the CPU, the same in every process that `builds`; `initial` is the folder of `model.initial_weights`."""
    builds = builds or not task.wraps  # what a task wraps by itself, it needs in each process
    torch.manual_seed(train.seed)
    with nullcontext() if builds else without_memory():
        modules = task.build(model.model_dump(), weights, DataInfo(facts))
    if initial and builds:
        start_from(modules, initial, model.initial_weights)
    freeze(modules, train.freeze)
    check_groups(modules, train.groups)
    return modules


def make_learner(task: Task, train: Train, modules: dict[str, nn.Module], strategy: Any) -> Learner:
    prepared: dict[str, tuple[nn.Module, Any]] = {}
    for name, module in modules.items():
        if train.recompute_activations:
            recompute_activations(module)
        if train.compile:
            compile_blocks(module)

        # by name, and before a strategy cuts the parameters into parts of other shapes
        groups = parameter_groups(name, module, train.weight_decay, train.groups)
        make_optimizer = partial(optimizer_of, train, groups)
        prepared[name] = (strategy.prepare if task.wraps else strategy.adopt)(module, make_optimizer)
    wrapped, optimizers = ({name: pair[i] for name, pair in prepared.items()} for i in (0, 1))
    return Learner(task, strategy, wrapped, optimizers, train.clip_norm)


def loaded(task: Task, modules: dict[str, nn.Module], strategy: Any, folder: Path) -> dict[str, nn.Module]:
    """The task's modules with the weights of a folder, each where it can be evaluated."""
    found = {}
    for name, module in modules.items():
        if strategy.builds or not task.wraps:
            load_model(strategy.unwrapped(module), folder / f"{name}.safetensors")
        found[name] = strategy.place(module) if task.wraps else module.to(strategy.device)
    return found
