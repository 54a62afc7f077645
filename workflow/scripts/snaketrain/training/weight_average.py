"""Averages of the weights over the steps of a training: they are evaluated, selected and exported, while the training continues without them.

    train: {callbacks: [{use: snaketrain.training.weight_average.Ema, arguments: {decay: 0.999}}]}

Each rank averages what it holds, so nothing is exchanged. Checkpoints hold the averages beside the weights.
"""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from snaketrain.strategies.shards import local_tensor
from snaketrain.training.callbacks import Callback
from snaketrain.training.checkpoints.rank_state import averaged_tensors
from snaketrain.training.state import StepOutcome, TrainState


class WeightAverage(Callback):
    """Derive from it another kind of average. It has no state of its own: the number of updates follows from the step."""

    def __init__(self, first_step: int = 1, every: int = 1):
        """The steps after which the weights are added to the average; until `first_step` there is none."""
        if first_step < 1 or every < 1:
            raise SystemExit(f"train.callbacks: first_step ({first_step}) and every ({every}) of an average must be at least 1.")
        self.first_step, self.every = first_step, every

    def share(self, updates: int) -> float:
        """What the newest weights contribute to the average, of so many updates in all."""
        raise NotImplementedError(f"{type(self).__name__} must say how much the newest weights contribute: override `share`")

    def on_train_start(self, state: TrainState) -> None:
        if not state.strategy.dcp_compatible:
            raise SystemExit("train.callbacks: the strategy shards parameters in a way that averages do not know. Use `fsdp` or `ddp`.")

    @torch.no_grad()
    def on_step_end(self, state: TrainState, outcome: StepOutcome) -> None:
        done = state.step - self.first_step
        if done < 0 or done % self.every:
            return
        for name, module in state.plain_modules().items():
            newest = averaged_tensors(module)
            if name not in state.averages:
                state.averages[name] = begun(newest)
            else:
                pairs = list(local_pairs(state.averages[name], newest))
                torch._foreach_lerp_([each for each, _ in pairs], [each for _, each in pairs], self.share(done // self.every + 1))


class Ema(WeightAverage):
    """An exponential moving average."""

    def __init__(self, decay: float = 0.999, first_step: int = 1, every: int = 1):
        super().__init__(first_step, every)
        if not 0 < decay < 1:
            raise SystemExit(f"train.callbacks: decay ({decay}) of Ema must be between 0 and 1.")
        self.decay = decay

    def share(self, updates: int) -> float:
        return 1.0 - self.decay


class Swa(WeightAverage):
    """Stochastic weight averaging: the mean of the weights since `first_step`, best with a learning rate that stays high."""

    def __init__(self, first_step: int, every: int = 1):
        super().__init__(first_step, every)

    def share(self, updates: int) -> float:
        return 1.0 / updates


def begun(newest: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The average of the newest weights alone."""
    return {name: tensor.clone() for name, tensor in newest.items()}


def local_pairs(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """What this rank holds of each tensor of both."""
    for name, tensor in some.items():
        mine, other = local_tensor(tensor), local_tensor(others[name])
        assert mine is not None and other is not None  # only gradients may be missing
        yield mine, other


@contextlib.contextmanager
def averages_in_place(state: TrainState) -> Iterator[None]:
    """The modules have the averaged weights, if there are any."""
    exchange(state)
    try:
        yield
    finally:
        exchange(state)


@torch.no_grad()
def exchange(state: TrainState) -> None:
    for name, averages in state.averages.items():
        # asking for the weights also frees those that FSDP2 has gathered, which would not change with its shards
        for average, weight in local_pairs(averages, averaged_tensors(state.plain_modules()[name])):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)
