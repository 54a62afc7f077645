"""Losses, figures and speed since the last line of the journal; losses stay on the device until they are logged."""

import contextlib
import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from snaketrain.strategies.base import Strategy
from snaketrain.strategies.losses import FIGURE, FIGURE_COUNT
from snaketrain.training.state import StateDict, StepOutcome

# --- Sums over all ranks by name, which every rank must have: they are added one after the other.


def check_names(strategy: Strategy, names: list[str], method: str) -> None:
    """Exit on all ranks if some have other names. Otherwise ranks would add different sums, or block in a collective."""
    if any(others != names for others in strategy.all_gather_object(names)):
        raise SystemExit(
            f"train.task.use: `{method}` has not returned the same names in all processes; here {', '.join(names)}. Return all names in each "
            "batch, in the same order, with zeros for what a batch has nothing of."
        )


class MetricWindow:
    def __init__(self, strategy: Strategy):
        self.strategy = strategy
        self.reopen()

    def reopen(self) -> None:
        """Start again from zero."""
        self.losses: dict[str, Tensor | float] = {}  # on the device, or numbers from a checkpoint
        self.count, self.examples, self.counted_here, self.seconds, self.began = 0.0, 0, 0.0, 0.0, time.perf_counter()
        self.earlier = (0.0, 0)  # count and examples of an earlier attempt, or of another training, which do not count for the speed

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Evaluation and saving do not count as training time."""
        self.seconds += time.perf_counter() - self.began
        yield
        self.began = time.perf_counter()

    def add(self, outcome: StepOutcome) -> None:
        """Once, and only if the weights were updated."""
        if outcome.logged or not outcome.applied:
            return
        outcome.logged = True
        self.count, self.counted_here = self.count + outcome.count, self.counted_here + outcome.counted_here
        self.examples += len(outcome.ids)
        for name, loss in outcome.losses.items():
            self.losses[name] = self.losses.get(name, 0.0) + loss

    def close(self, counts: str) -> dict[str, float]:
        """Over all ranks the mean loss, its parts if it has several, the figures that the task returns beside it, and the speed."""
        check_names(self.strategy, [*self.losses], "training_step")
        totals = {
            name: total if isinstance(total, Tensor) else torch.tensor(total, dtype=torch.float64) for name, total in self.losses.items()
        }
        sums = {name: float(self.strategy.sum(total)) for name, total in totals.items()}
        means = {name: sums[name] / max(1.0, self.count) for name in sums if is_loss(name)}
        figures = {"loss": sum(means.values())} | {f"loss_{name}": mean for name, mean in means.items() if name}
        for name in (name.removeprefix(FIGURE) for name in sums if name.startswith(FIGURE)):
            count = sums.get(f"{FIGURE_COUNT}{name}", max(1.0, self.count))
            figures[name] = sums[f"{FIGURE}{name}"] / count if count else math.nan  # such as of a class that no example had
        seconds, examples = self.seconds + time.perf_counter() - self.began, self.examples - self.earlier[1]
        if not examples:
            return figures
        return figures | {f"{counts}_per_second": (self.count - self.earlier[0]) / seconds, "examples_per_second": examples / seconds}

    def of_this_rank(self, counts: str) -> dict[str, float]:
        """The mean loss of this rank alone, and how much it computed."""
        return {
            "loss": float(sum(loss for name, loss in self.losses.items() if is_loss(name))) / max(1.0, self.counted_here),
            counts: self.counted_here,
        }

    def state_dict(self) -> dict[str, object]:
        """Sums of all ranks, since a training may stop between two lines of the journal."""
        losses = {name: float(loss) for name, loss in self.losses.items()}  # not tensors, which would be unpickled on the sender's device
        here = {"losses": losses, "counted": self.count, "here": self.counted_here, "examples": self.examples}
        return {"processes": self.strategy.all_gather_object(here)}

    def load_state_dict(self, state: StateDict) -> None:
        """Each rank resumes with its own losses; if the number of ranks changed, the first rank with the losses of all."""
        ranks, strategy = state["processes"], self.strategy
        for name in (name for part in ranks for name in part["losses"]):
            self.losses.setdefault(name, 0.0)  # on all ranks, so that all reduce the same names in the same order
        same_number = len(ranks) == strategy.data_parallel_size
        mine = [ranks[strategy.data_parallel_rank]] if same_number else ranks * (strategy.data_parallel_rank == 0)
        for part in mine:
            self.counted_here += part["here"]
            for name, loss in part["losses"].items():
                self.losses[name] += float(loss)  # older checkpoints hold tensors
        self.count, self.examples = (ranks[0][key] for key in ("counted", "examples"))
        self.earlier = self.count, self.examples


def is_loss(name: str) -> bool:
    return not name.startswith((FIGURE, FIGURE_COUNT))
