"""What a user writes to teach the trainer something new. Everything here thinks of one process and one device."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]
Update = Callable[[str, Tensor], None]


class Task:
    """Derive from this, name it as `train.task.use: path/to/my_task.py:MyTask`, and override what differs.

    Sums, not means, leave these methods: they are added over batches and processes and divided once, so that neither
    the number of processes nor padding nor an uneven last batch changes a figure.
    """

    metrics: tuple[str, ...] = ("loss",)  # what `measure` returns; `select.metric` is checked against it before any job

    def build(self, model: dict[str, Any], folder: Path | None, data: dict[str, Any]) -> dict[str, nn.Module]:
        """The modules by name, from the `model` section, the folder of pretrained weights, and the facts of the data."""
        raise NotImplementedError(f"{type(self).__name__} must say how to build its model: override `build`")

    def training_step(self, modules: dict[str, nn.Module], batch: Batch, update: Update) -> None:
        """Call `update(name, loss)` for each module that learns, with the loss summed over the batch's examples."""
        raise NotImplementedError(f"{type(self).__name__} must say what a step is: override `training_step`")

    def evaluation_step(self, modules: dict[str, nn.Module], batch: Batch) -> dict[str, Tensor]:
        """Sums over the batch's examples, of any shape, and their `count`."""
        raise NotImplementedError(f"{type(self).__name__} must say what is measured: override `evaluation_step`")

    def measure(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """Metrics from the sums over all examples."""
        return {name: float(total / sums["count"]) for name, total in sums.items() if name != "count"}

    def predict(self, modules: dict[str, nn.Module], batch: Batch) -> dict[str, Tensor]:
        """A row for each example: `probabilities` and `loss`, for the evaluation of the winner."""
        raise NotImplementedError(f"{type(self).__name__} cannot be evaluated on single examples: override `predict`")

    def describe(self, modules: dict[str, nn.Module], folder: Path) -> None:
        """Write beside the weights what is needed to load them elsewhere, such as a config.json."""


def decay_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters with weight decay, and the biases and norms, which go without: they have one dimension."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def on_device(batch: Batch, device: torch.device) -> Batch:
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
