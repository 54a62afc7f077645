"""What a person watches while a training runs: a bar where there is a terminal, lines in a log, and TensorBoard files."""

import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm


class Progress:
    """Only the first process shows anything."""

    def __init__(self, run: str, steps: int, every_steps: int, tensorboard: Path, shows: bool):
        self.every_steps, self.run, self.steps, self.tensorboard, self.shows = every_steps, run, steps, tensorboard, shows

    def start(self, step: int) -> None:
        """Begin to show, after `step`."""
        # in a log file a line now and then, in a terminal a bar that moves
        interval = 0.5 if sys.stderr.isatty() else 15
        self.bar = tqdm(
            initial=step, total=self.steps, desc=self.run, unit="step", mininterval=interval, disable=not self.shows, dynamic_ncols=True
        )
        if self.shows:
            from torch.utils.tensorboard import SummaryWriter

            self.events = SummaryWriter(str(self.tensorboard), purge_step=step + 1)

    def logs_at(self, step: int) -> bool:
        return step % self.every_steps == 0

    def show(self, step: int, figures: dict[str, float]) -> None:
        self.bar.set_postfix_str(
            f"loss {figures.get('loss', float('nan')):.4f}, {figures['examples_per_second']:.0f} examples/s", refresh=False
        )
        self.bar.update(step - self.bar.n)
        self._write("train", step, figures)

    def evaluated(self, step: int, metrics: dict[str, Any]) -> None:
        if self.shows:
            tqdm.write(
                f"{self.run}, step {step}: " + ", ".join(f"dev {name} {value:.4f}" for name, value in metrics.items()), file=sys.stderr
            )
        self._write("eval", step, metrics)

    def _write(self, prefix: str, step: int, figures: dict[str, float]) -> None:
        if self.shows:
            from tensorboard.compat.proto.summary_pb2 import Summary

            # all in one event: to write each by itself takes as long as a small step
            values = [Summary.Value(tag=f"{prefix}/{name}", simple_value=value) for name, value in figures.items()]
            self.events.file_writer.add_summary(Summary(value=values), step)

    def close(self) -> None:
        self.bar.close()
        if self.shows:
            self.events.close()
