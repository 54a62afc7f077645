"""The interface of tasks, which a user implements to train something new, as if for one process and one device."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from snaketrain.data.loading.training_data import Batch as Batch  # part of this interface
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tasks.metrics import Metric

Modules = dict[str, nn.Module]
Losses = Tensor | dict[str, Tensor]
Figures: TypeAlias = dict[str, Tensor | tuple[Tensor, Tensor]]  # sums that are logged as train/<name>, optionally with a count of their own
Returned: TypeAlias = Losses | tuple[Losses, Figures]
Outputs: TypeAlias = Any  # of the modules: any type that the methods of a task agree on
Columns: TypeAlias = Mapping[str, Tensor | list[str]]  # numbers or texts; a row for each example
Objective = tuple[Callable[[Modules, Batch], Returned], list[str]]  # a loss, and the modules that learn from it


class Task:
    """Derive from this, name it as `train.task.use: path/to/my_task.py:MyTask`, and override what differs.

    These methods return sums, not means. They are added over batches and processes and divided once, so that neither the number of
    processes nor padding nor an uneven last batch changes a metric.
    """

    # what `measure` returns, and whether higher (`max`) or lower (`min`) is better, optionally by `data.label_kind`; `select` is checked
    # against them before any job
    metrics: Mapping[str, str | Mapping[str, str | None] | None] = {"loss": "min"}
    measured: Mapping[str, Metric] = {}  # the metrics that the configuration names, besides those of `measure`
    counts = "examples"  # what `count` counts; named in the reported speed
    evaluates_only = False  # True: `validation_epoch` and `state_dict` of this very class change no weight, so that evaluating at other steps repeats none
    whole_batches = False  # True: a loss compares the examples of a batch, which microbatches would divide
    wraps = True  # False: `build` returns modules that the task has wrapped itself, which the strategy leaves alone

    def build(self, model: JsonObject, folder: Path | None, data: JsonObject) -> Modules:
        """The modules by name, from the `model` section, the folder of pretrained weights, and the facts of the data."""
        raise NotImplementedError(f"{type(self).__name__} must say how to build its model: override `build`")

    # --- each batch of the training

    def training_step(self, modules: Modules, batch: Batch) -> Returned:
        """The loss summed over what `count` counts; or several losses by name, which are added up. And beside it, as the second of two
        values, figures by name that are only logged: sums, divided like the loss, or each `(sum, count)`.

        Called again with the same examples after running out of memory. Buffers of the modules are restored before that, attributes
        of the task are not: change those in `train_epoch`.
        """
        raise NotImplementedError(f"{type(self).__name__} must say what it learns: override `training_step`")

    def objectives(self, modules: Modules) -> list[Objective]:
        """The losses to minimise with each batch, one after the other."""
        return [(self.training_step, list(modules))]

    def count(self, batch: Batch) -> int:
        """What the sum of losses is divided by, over all processes: examples here, tokens for a language model."""
        return len(next(iter(batch.values())))

    # --- each batch of an evaluation: the modules run once, for both metrics and predictions

    def outputs(self, modules: Modules, batch: Batch) -> Outputs:
        """What `evaluation_step` and `predict` receive, such as logits; by default the modules themselves."""
        return modules

    def evaluation_step(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        """Sums over the batch's examples, of any shape, and their `count`."""
        raise NotImplementedError(f"{type(self).__name__} must say what it measures: override `evaluation_step`")

    def measure(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """Metrics from the sums over all examples."""
        return {name: float(total / sums["count"]) for name, total in sums.items() if name != "count"}

    def metric_inputs(self, metric: str, outputs: Outputs, batch: Batch) -> tuple[Tensor, ...]:
        """The prediction and the target that a metric of `train.metrics` or `evaluate.metrics` compares, with a row for each example."""
        raise NotImplementedError(f"{type(self).__name__} must say what `{metric}` compares: override `metric_inputs`")

    def predict(self, outputs: Outputs, batch: Batch) -> Columns:
        """Columns by name, with a row for each example; none: the evaluation reports only metrics."""
        return {}

    def samples(self) -> list[JsonObject]:
        """Some examples of the last evaluation in words, to be shown in the log: such as what was asked and what was answered."""
        return []

    def baselines(self, rows: dict[str, Tensor]) -> dict[str, JsonObject]:
        """Constant answers by name, from the rows of all examples: the `answer` as text, and its metrics."""
        return {}

    # --- each epoch

    def on_worker_start(self) -> None:
        """Called once in each process, before anything else."""

    def on_epoch_start(self, epoch: int, modules: Modules) -> None:
        """Called before each epoch, counted from 0, and when a training resumes within one."""

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

    # --- saved with the weights

    def state_dict(self) -> dict[str, object]:
        """What a resumed training needs besides modules and optimizers: numbers, strings, tensors."""
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """The inverse of `state_dict`."""

    def describe(self, modules: Modules, folder: Path) -> None:
        """Write beside the weights what is needed to load them elsewhere, such as a config.json."""


def on_device(batch: Batch, device: torch.device) -> Batch:
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
