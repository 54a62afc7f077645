"""What a task measures over the batches of an evaluation: its own sums, and the metrics that the configuration names."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from snaketrain.data.loading.training_data import Batch
from snaketrain.tasks.base import Outputs, Task
from snaketrain.tasks.metrics import OfRows, Sums

Rows = dict[str, Tensor]  # a row for each example
Reduce = Callable[[Tensor], Tensor]
Gather = Callable[[Rows], Rows]


class Measuring:
    def __init__(self, task: Task):
        self.task = task
        self.own: Sums = {}
        self.of_metrics: dict[str, Sums] = {}
        self.rows: dict[str, list[Tensor]] = {}

    def add(self, outputs: Outputs, batch: Batch, examples: int, filler: bool = False) -> None:
        """Of a `filler`, an example that was evaluated elsewhere, only the shapes count: all processes add the same names."""
        add_up(self.own, self.task.evaluation_step(outputs, batch), filler)
        for name, metric in self.task.measured.items():
            values = self.task.metric_inputs(name, outputs, batch)
            if not isinstance(metric, OfRows):
                add_up(self.of_metrics.setdefault(name, {}), metric.sums(*values), filler)
            elif not filler:
                self.keep(name, values, examples)

    def keep(self, name: str, values: tuple[Tensor, ...], examples: int) -> None:
        for number, value in enumerate(values):
            if len(value) != examples:
                raise SystemExit(
                    f"metrics.{name}: needs a row for each example, but this task gives {len(value)} for {examples} examples. "
                    "Use a metric that adds up, such as one with `thresholds`."
                )
            # numpy has no bfloat16
            self.rows.setdefault(f"{name}.{number}", []).append(value.float().cpu() if value.dtype == torch.bfloat16 else value.cpu())

    def metrics(self, total: Reduce = lambda tensor: tensor, gather: Gather = lambda rows: rows) -> dict[str, float]:
        """`total` adds a sum over all processes; `gather` collects the rows of all processes in the order of the examples."""
        found = self.task.measure({name: total(value) for name, value in self.own.items()})
        of_metrics = {name: {key: total(value) for key, value in sums.items()} for name, sums in self.of_metrics.items()}
        needed = [name for name, metric in self.task.measured.items() if isinstance(metric, OfRows)]
        rows = gather({name: torch.cat(parts) for name, parts in self.rows.items()}) if needed else {}
        for name, metric in self.task.measured.items():
            found[name] = metric.compute(*columns(rows, name)) if isinstance(metric, OfRows) else metric.compute(of_metrics[name])
        return found


def columns(rows: Mapping[str, Tensor], name: str) -> list[Tensor]:
    return [rows[key] for key in sorted(rows) if key.rpartition(".")[0] == name]


def add_up(totals: Sums, values: Mapping[str, Tensor], filler: bool) -> None:
    for name, value in values.items():
        totals[name] = totals.get(name, 0.0) + (torch.zeros_like(value) if filler else value).double()


# --- Constant answers, the same for every example, as baselines of the task `module`.

OF_CLASSES = ("CrossEntropyLoss", "cross_entropy", "NLLLoss", "nll_loss")
OF_LOGITS = ("BCEWithLogitsLoss", "binary_cross_entropy_with_logits")
OF_VALUES = (
    *("MSELoss", "mse_loss", "L1Loss", "l1_loss", "SmoothL1Loss", "smooth_l1_loss", "HuberLoss", "huber_loss"),
    *("BCELoss", "binary_cross_entropy"),
)
SMALLEST = 1e-7  # smallest share: classes that never occur get a finite logit


def constant_answer(loss: str, prediction: Tensor, target: Tensor | None) -> tuple[Tensor, str] | None:
    """The best constant prediction for a loss, and its description; None if it is unknown how the loss interprets predictions."""
    name, of_torch = loss.rpartition(".")[2], loss.startswith("torch.")
    if target is None:
        return None
    if of_torch and name in OF_CLASSES and not target.is_floating_point() and prediction.ndim == target.ndim + 1:
        counts = torch.bincount(target[target >= 0].flatten(), minlength=prediction.shape[1])  # the loss ignores targets below 0
        logits = (counts / counts.sum()).clamp(min=SMALLEST).log()
        shape = (1, -1, *[1] * (prediction.ndim - 2))
        return logits.reshape(shape).expand_as(
            prediction
        ), f"always class {counts.argmax()}, with the classes' frequencies as probabilities"
    if not (target.is_floating_point() and target.numel() == prediction.numel()) or (of_torch and name not in OF_LOGITS + OF_VALUES):
        return None
    mean = target.reshape(prediction.shape).mean(0)
    words = f"always {f'{mean.item():.4g}, ' if mean.numel() == 1 else ''}the mean of the targets"
    return (mean.logit(SMALLEST) if of_torch and name in OF_LOGITS else mean).expand_as(prediction), words
