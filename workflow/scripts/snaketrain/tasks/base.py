"""What a user writes to teach the trainer something new. Everything here thinks of one process and one device."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]
Modules = dict[str, nn.Module]
Losses = Tensor | dict[str, Tensor]
Objective = tuple[Callable[[Modules, Batch], Losses], list[str]]  # a loss, and the modules that learn from it


class Task:
    """Derive from this, name it as `train.task.use: path/to/my_task.py:MyTask`, and override what differs.

    Sums, not means, leave these methods: they are added over batches and processes and divided once, so that neither
    the number of processes nor padding nor an uneven last batch changes a figure.
    """

    # what `measure` returns, and whether more or less of it is better; `select` is checked against it before any job
    metrics: Mapping[str, Any] = {"loss": "min"}
    counts = "examples"  # what `count` counts, for the speed that is shown
    wraps = True  # False: the strategy leaves the modules as `build` returns them, wrapped by the task itself

    def build(self, model: dict[str, Any], folder: Path | None, data: dict[str, Any]) -> Modules:
        """The modules by name, from the `model` section, the folder of pretrained weights, and the facts of the data."""
        raise NotImplementedError(f"{type(self).__name__} must say how to build its model: override `build`")

    # --- each batch of the training

    def training_step(self, modules: Modules, batch: Batch) -> Losses:
        """The loss summed over what `count` counts; or several by name, which are added up.

        Called again with the same examples where the memory ran out; buffers of the modules are put back before, what the task
        itself notes down here is not: do that in `train_epoch`.
        """
        raise NotImplementedError(f"{type(self).__name__} must say what is learnt: override `training_step`")

    def objectives(self, modules: Modules) -> list[Objective]:
        """What each batch minimises, one after the other."""
        return [(self.training_step, list(modules))]

    def count(self, batch: Batch) -> int:
        """What a sum of losses is divided by, over all processes: examples here, tokens for a language model."""
        return len(next(iter(batch.values())))

    # --- each batch of an evaluation: the modules work once, and both figures and rows come from what they found

    def outputs(self, modules: Modules, batch: Batch) -> Any:
        """What `evaluation_step` and `predict` are given, such as logits. As it stands, the modules themselves."""
        return modules

    def evaluation_step(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Sums over the batch's examples, of any shape, and their `count`."""
        raise NotImplementedError(f"{type(self).__name__} must say what is measured: override `evaluation_step`")

    def measure(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """Metrics from the sums over all examples."""
        return {name: float(total / sums["count"]) for name, total in sums.items() if name != "count"}

    def predict(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """A row for each example, by the name of the column; none: the evaluation gives figures only."""
        return {}

    def baselines(self, rows: dict[str, Tensor]) -> dict[str, dict[str, Any]]:
        """What constant answers get, from the rows of all examples: by name, the `answer` in words and the metrics."""
        return {}

    # --- each epoch

    def on_worker_start(self) -> None:
        """Called once in each process, before anything else."""

    def on_epoch_start(self, epoch: int, modules: Modules) -> None:
        """Called before each epoch, counted from 0, and when a training goes on within one."""

    def train_epoch(self, epoch: int, steps: Iterable[Callable[[], None]]) -> None:
        """Each of `steps` trains on one batch when it is called; override this to do something between them."""
        for step in steps:
            step()

    def validation_epoch(self, modules: Modules, batches: Iterable[Callable[[], None]]) -> None:
        """Each of `batches` evaluates one batch when it is called; override this to do something before, between or after them,
        such as putting averaged weights in place. The modules are in evaluation mode, and no gradients are kept.
        """
        for evaluate_batch in batches:
            evaluate_batch()

    def on_epoch_end(self, epoch: int, modules: Modules) -> None:
        """Called after each whole epoch."""

    # --- what is kept

    def state(self) -> dict[str, Any]:
        """What a resumed training must know besides modules and optimizers: numbers, texts, tensors."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """The opposite of `state`."""

    def describe(self, modules: Modules, folder: Path) -> None:
        """Write beside the weights what is needed to load them elsewhere, such as a config.json."""


def on_device(batch: Batch, device: torch.device) -> Batch:
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
