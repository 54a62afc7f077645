"""Losses and speed over the steps since the last line of the journal, kept on the device and read late."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


class Window:
    def __init__(self, strategy: Any):
        self.strategy = strategy
        self.reopen()

    def reopen(self) -> None:
        """Begin anew."""
        self.losses: dict[str, Tensor | float] = {}  # on the device, or numbers of a checkpoint
        self.counted, self.examples, self.here, self.seconds, self.began = 0.0, 0, 0.0, 0.0, time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Evaluations and saves do not count as slow training."""
        self.seconds += time.perf_counter() - self.began
        yield
        self.began = time.perf_counter()

    def add(self, losses: dict[str, Tensor], counted: float, here: float, examples: int) -> None:
        """A step: this process's losses; what all processes counted, and what this one did; and all examples."""
        self.counted, self.here, self.examples = self.counted + counted, self.here + here, self.examples + examples
        for name, loss in losses.items():
            self.losses[name] = self.losses.get(name, 0.0) + loss

    def close(self, counts: str) -> dict[str, float]:
        """The mean loss over all processes, with its parts if it has several, and the speed."""
        totals = {
            name: total if isinstance(total, Tensor) else torch.tensor(total, dtype=torch.float64) for name, total in self.losses.items()
        }
        means = {name: float(self.strategy.sum(total)) / max(1.0, self.counted) for name, total in totals.items()}
        figures = {"loss": sum(means.values())} | {f"loss_{name}": mean for name, mean in means.items() if name}
        seconds = self.seconds + time.perf_counter() - self.began
        return figures | {f"{counts}_per_second": self.counted / seconds, "examples_per_second": self.examples / seconds}

    def own(self, counts: str) -> dict[str, float]:
        """The mean loss of this process alone, and how much it had to do."""
        return {"loss": float(sum(self.losses.values())) / max(1.0, self.here), counts: self.here}

    def state(self) -> dict[str, Any]:
        """Of all processes, since a training may be stopped between two lines of the journal."""
        losses = {name: float(loss) for name, loss in self.losses.items()}  # a tensor would be sent with the device that it is on
        mine = {"seconds": self.seconds, "losses": losses, "counted": self.counted, "here": self.here, "examples": self.examples}
        return {"processes": self.strategy.all_gather_object(mine)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Each process goes on with its own losses; with another number of processes, the first one with the losses of all."""
        processes, strategy = state["processes"], self.strategy
        for name in (name for part in processes for name in part["losses"]):
            self.losses.setdefault(name, 0.0)  # in all processes, which add up one after the other
        mine = (
            [processes[strategy.data_parallel_rank]]
            if len(processes) == strategy.data_parallel_size
            else processes * (strategy.data_parallel_rank == 0)
        )
        for part in mine:
            self.here += part["here"]
            for name, loss in part["losses"].items():
                self.losses[name] += float(loss)  # earlier checkpoints have tensors
        self.counted, self.examples, self.seconds = (processes[0][key] for key in ("counted", "examples", "seconds"))


@contextlib.contextmanager
def each(contexts: Iterable[contextlib.AbstractContextManager]) -> Iterator[None]:
    """Several contexts as one."""
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
