"""What a task measures over the batches of an evaluation: its own sums, and the metrics that the configuration names."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from snaketrain.tasks.base import Batch, Outputs, Task
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
