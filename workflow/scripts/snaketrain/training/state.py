"""The state of a training between two steps, and the outcome of a step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from snaketrain.strategies.base import Strategy
from snaketrain.strategies.losses import LossSums, Objective
from snaketrain.tasks.base import Task

StateDict: TypeAlias = dict[str, Any]  # numbers, strings, lists and tensors: what `torch.load` reads with `weights_only`


class Stateful(Protocol):
    """What a checkpoint holds besides modules and optimizers."""

    def state_dict(self) -> Mapping[str, object]: ...

    def load_state_dict(self, state: StateDict) -> None: ...


@dataclass
class TrainState:
    """The task's modules, wrapped by the strategy, their optimizers, and the last step taken."""

    task: Task
    strategy: Strategy
    modules: dict[str, nn.Module]
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    clip_norm: float | None = None
    parameters: int = 0  # of the full model, however it is sharded
    step: int = 0
    spikes: "Spikes | None" = None  # which steps are skipped for their gradient norm
    averages: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # by module: averaged weights, as this rank holds them
    rate_scale: float = 1.0  # set by a callback to lower the learning rate below the plan's
    finished_early: str = ""  # set by a callback to end the training before its plan: the reason

    @property
    def rank(self) -> int:
        return self.strategy.rank

    def plain_modules(self) -> dict[str, nn.Module]:
        return {name: self.strategy.unwrapped(module) for name, module in self.modules.items()}

    def objectives(self) -> list[Objective]:
        """The task's losses, each with the modules that learn from it as the strategy wrapped them, and the others plain."""
        plain = self.plain_modules()
        return [
            Objective(loss, plain | {name: self.modules[name] for name in learning}, learning)
            for loss, learning in self.task.objectives(self.modules)
        ]

    def clear_gradients(self) -> None:
        for name, module in self.modules.items():
            self.strategy.clear(module, self.optimizers[name])


class Spikes:
    """Finds the steps whose gradient norm is more than `factor` times the median of those of the last updates.

    By objective, and on the device, so that the host need not wait to know whether the update is skipped.
    """

    UPDATES = 20  # of which the median is taken; before there are as many, no step is a spike

    def __init__(self, factor: float):
        self.factor = factor
        self.last: dict[int, Tensor] = {}  # the norms of the last updates
        self.newest: dict[int, Tensor] = {}  # the norm of this step, skipped or not

    def judge(self, objective: int, norm: Tensor) -> Tensor:
        """NaN in place of a spike."""
        norm = norm.reshape(()).float()
        last = self.last.setdefault(objective, torch.full((self.UPDATES,), math.nan)).to(norm.device)
        judged = torch.where(norm > self.factor * last.median(), math.nan, norm)  # nothing is greater than NaN
        self.newest[objective] = norm
        self.last[objective] = torch.where(judged.isfinite(), torch.cat([last[1:], norm.reshape(1)]), last)
        return judged

    def state_dict(self) -> Mapping[str, object]:
        return {"last": {number: norms.tolist() for number, norms in self.last.items()}}

    def load_state_dict(self, state: StateDict) -> None:
        self.last = {number: torch.tensor(norms) for number, norms in state["last"].items()}


class HostCopy:
    """A scalar on its way from the device to the host: reading it does not wait for work that was queued later."""

    def __init__(self, value: Tensor):
        self._value, self._arrived = value, None
        if value.device.type == "cuda":
            self._value = torch.empty_like(value, device="cpu", pin_memory=True).copy_(value, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch declares no types
            self._arrived.record()

    def item(self) -> float:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._value.item()


@dataclass
class StepOutcome:
    """A step that was computed. Its losses and gradient norm stay on the device until they are read."""

    step: int
    ids: np.ndarray  # the examples of the whole batch
    losses: LossSums  # of this rank
    count: float  # what the losses of all ranks are divided by
    counted_here: float
    gradient_norm: Tensor
    learning_rate: float
    raw_norm: Tensor | None = None  # also of a spike, whose `gradient_norm` is NaN
    logged: bool = False  # whether the metric window has counted it
    settled: bool = False  # whether it was recorded as applied or skipped

    def __post_init__(self) -> None:
        self._norm = HostCopy(self.gradient_norm)
        self._raw_norm = self._norm if self.raw_norm is None else HostCopy(self.raw_norm)

    @cached_property
    def applied(self) -> bool:
        """Whether the weights were updated: only if the gradients of all ranks were finite, and no spike."""
        return math.isfinite(self._norm.item())

    @property
    def found_norm(self) -> float:
        """The norm of the gradients, whatever was done with them."""
        return self._raw_norm.item()


def seed_step(seed: int, step: int, objective: int, strategy: Strategy) -> None:
    """Dropout depends on the step and the objective alone, so a resumed or repeated step draws the same numbers."""
    number = (seed * 1_000_003 + step) * 1_009 + strategy.random_rank + objective * 1_000_000_007
    torch.default_generator.manual_seed(number)  # `torch.manual_seed` spends half a millisecond on devices that are not used
    if strategy.device.type == "cuda":
        torch.cuda.manual_seed(number)
