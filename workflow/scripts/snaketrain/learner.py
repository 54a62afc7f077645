"""What learns: a task's modules as the strategy wrapped them, and their optimizers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snaketrain.blocks import compile_blocks, recompute_activations
from snaketrain.loading import load
from snaketrain.parameters import check_groups, freeze, parameter_groups
from snaketrain.settings import Model, Train
from snaketrain.tasks.base import Task


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


def make_task(train: Train) -> Task:
    return load(train.task.use, "tasks")(**train.task.arguments)


def build(task: Task, train: Train, model: Model, weights: Path | None, facts: dict[str, Any]) -> dict[str, nn.Module]:
    """The task's modules on the CPU, the same in every process."""
    torch.manual_seed(train.seed)
    modules = task.build(model.model_dump(), weights, facts)
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

        def make_optimizer(wrapped: nn.Module, name: str = name) -> Any:
            groups = parameter_groups(name, wrapped, train.weight_decay, train.groups)
            return load(train.optimizer.use)(groups, lr=train.learning_rate, **train.optimizer.arguments)

        if task.wraps:
            prepared[name] = strategy.prepare(module, make_optimizer)
        else:
            prepared[name] = (module.to(strategy.device), make_optimizer(module))
    wrapped, optimizers = ({name: pair[i] for name, pair in prepared.items()} for i in (0, 1))
    return Learner(task, strategy, wrapped, optimizers, train.clip_norm)
