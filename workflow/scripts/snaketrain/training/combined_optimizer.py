"""Several optimizers of one module as one, such as Muon for its matrices and AdamW for the rest."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer


class CombinedOptimizer(Optimizer):
    """Its parameter groups and its state are those of its optimizers, in order."""

    def __init__(self, optimizers: Sequence[Optimizer]):
        self.optimizers = optimizers
        super().__init__([group for optimizer in optimizers for group in optimizer.param_groups], {})
        self.share()

    def share(self) -> None:
        """Let all hold the same groups, whose rates the trainer sets, and the same state, which checkpoints save."""
        self.param_groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        self.state = defaultdict(dict, {key: value for optimizer in self.optimizers for key, value in optimizer.state.items()})
        for optimizer in self.optimizers:
            optimizer.state = self.state

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # torch's has overloads
        for optimizer in self.optimizers:
            optimizer.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Parameters are numbered in the order of the groups."""
        groups, first = list(state_dict["param_groups"]), 0
        for optimizer in self.optimizers:
            mine, groups = groups[: len(optimizer.param_groups)], groups[len(optimizer.param_groups) :]
            count = sum(len(group["params"]) for group in mine)
            numbers = range(first, first + count)
            optimizer.state = defaultdict(dict)
            optimizer.load_state_dict(
                {
                    "state": {number - first: state_dict["state"][number] for number in numbers if number in state_dict["state"]},
                    "param_groups": [group | {"params": [number - first for number in group["params"]]} for group in mine],
                }
            )
            first += count
        self.share()
