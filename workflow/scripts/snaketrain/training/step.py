"""One step of each optimizer, on this rank's microbatches."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from torch import Tensor

from snaketrain.strategies.base import norm_of
from snaketrain.strategies.losses import LossSums, MicroBatches, Objective, add_up
from snaketrain.training.optimizers import set_rate
from snaketrain.training.recovery import explain_update, is_out_of_memory
from snaketrain.training.state import TrainState

ForwardBackward: TypeAlias = Callable[[int, Objective], LossSums]  # of an objective and its number


def train_step(
    state: TrainState, rate: float, forward_backward: ForwardBackward, of_groups: Mapping[int, float] = MappingProxyType({})
) -> tuple[LossSums, Tensor]:
    """Compute gradients and update for each of the task's objectives; return this rank's losses and the norm of all gradients.

    `of_groups`: the rates of parameter groups with a schedule of their own.
    """
    strategy, norms = state.strategy, list[Tensor]()
    losses: LossSums = {}
    for name, module in state.modules.items():
        if not module.training:  # after an evaluation; `train()` visits every submodule, which takes as long as a small step
            module.train()
        set_rate(state.optimizers[name], rate, of_groups)
    for number, objective in enumerate(state.objectives()):
        add_up(losses, forward_backward(number, objective))
        pairs = [(state.modules[name], state.optimizers[name]) for name in objective.learning]
        try:
            norms.append(strategy.update(pairs, state.clip_norm, alike=state.task.wraps))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise SystemExit(explain_update(error)) from None
        state.clear_gradients()  # also those that the loss left in modules that do not learn from it
    return losses, norm_of(norms)


def take_step(state: TrainState, microbatches: MicroBatches, denominator: float, rate: float) -> tuple[LossSums, Tensor]:
    """`train_step` without a trainer around it, for benchmarks and tests."""
    return train_step(state, rate, lambda _, objective: state.strategy.forward_backward(objective, microbatches, denominator))
