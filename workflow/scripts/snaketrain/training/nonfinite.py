"""Steps whose loss or gradient is not finite: they are skipped and recorded, and after too many in a row the training rolls back."""

from snaketrain.strategies.base import Strategy
from snaketrain.training.metric_window import is_loss
from snaketrain.training.state import StateDict, StepOutcome


class Diverged(SystemExit):
    """A training whose loss is no longer finite, whatever is tried."""


class NonfiniteSteps:
    """Every rank counts the same, since a loss that is not finite on one rank makes the gradients of all not finite."""

    def __init__(self, allowed: int, rollbacks_allowed: int):
        self.allowed, self.rollbacks_allowed = allowed, rollbacks_allowed
        self.in_a_row: list[list[int]] = []  # the examples of each step
        self.rollbacks = 0
        self.longest = 0  # the most steps in a row so far

    def record_finite(self) -> None:
        self.in_a_row = []

    def record_nonfinite(self, examples: list[int]) -> bool:
        """Whether it is time to roll back."""
        self.in_a_row.append(examples)
        self.longest = max(self.longest, len(self.in_a_row))
        if len(self.in_a_row) <= self.allowed:
            return False
        if self.rollbacks == self.rollbacks_allowed:
            shown = sorted({example for step in self.in_a_row for example in step})
            raise Diverged(
                f"train.bad_steps_allowed: {len(self.in_a_row)} steps in a row had losses or gradients that are not finite, after {self.rollbacks} "
                f"rollbacks to an earlier checkpoint. The training examples of these steps: {', '.join(map(str, shown[:200]))}"
                f"{', ...' if len(shown) > 200 else ''}. Look at them, lower train.learning_rate, or try train.precision: fp32."
            )
        self.in_a_row, self.rollbacks = [], self.rollbacks + 1
        return True

    def state_dict(self) -> dict[str, object]:
        return {"in_a_row": self.in_a_row, "rollbacks": self.rollbacks, "longest": self.longest}

    def load_state_dict(self, state: StateDict) -> None:
        self.in_a_row, self.rollbacks = state["in_a_row"], state["rollbacks"]
        self.longest = state.get("longest", len(self.in_a_row))  # older checkpoints have none


def nonfinite_ranks(strategy: Strategy, outcome: StepOutcome) -> list[int] | None:
    """The ranks whose losses are not finite; None where nothing is wrong, and only the loss scale was too high for fp16."""
    mine = (strategy.rank, all(bool(loss.isfinite()) for name, loss in outcome.losses.items() if is_loss(name)))
    found = strategy.all_gather_object(mine)  # of each group of ranks that share a batch, one
    if all(finite for _, finite in found) and strategy.scaler.is_enabled() and strategy.scaler.get_scale() >= 1.0:
        return None  # the scaler has lowered its scale; below 1 the scale is not the reason
    return [rank for rank, finite in found if not finite]
