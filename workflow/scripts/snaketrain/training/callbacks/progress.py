"""What a person watches while a training runs: a bar where there is a terminal, lines in a log, and TensorBoard files."""

import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

BUNDLE_SECONDS = 1.0  # what is to be shown waits so long for more: to show it piece by piece slows small steps down


class Progress:
    """Only the first process shows anything."""

    def __init__(self, run: str, steps: int, every_steps: int, tensorboard: Path, shows: bool):
        self.every_steps, self.run, self.steps, self.tensorboard, self.shows = every_steps, run, steps, tensorboard, shows
        self.waiting: list[tuple[str, int, dict[str, Any], float]] = []  # for TensorBoard
        self.shown = time.monotonic()

    def start(self, step: int) -> None:
        """Begin to show, after `step`."""
        # in a log file a line now and then, in a terminal a bar that moves
        interval = 0.5 if sys.stderr.isatty() else 15
        self.bar = tqdm(
            initial=step, total=self.steps, desc=self.run, unit="step", mininterval=interval, disable=not self.shows, dynamic_ncols=True
        )
        if self.shows:
            from torch.utils.tensorboard import SummaryWriter

            self.events = SummaryWriter(str(self.tensorboard), purge_step=step + 1, max_queue=1000)

    def logs_at(self, step: int) -> bool:
        return step % self.every_steps == 0

    def show(self, step: int, figures: dict[str, float]) -> None:
        if self.shows:
            self.waiting.append(("train", step, figures, time.time()))
            if step == self.steps or time.monotonic() - self.shown > BUNDLE_SECONDS:
                self.bar.set_postfix_str(
                    f"loss {figures.get('loss', float('nan')):.4f}, {figures['examples_per_second']:.0f} examples/s", refresh=False
                )
                self.bar.update(step - self.bar.n)
                self._write()
                self.shown = time.monotonic()

    def evaluated(self, step: int, metrics: dict[str, Any]) -> None:
        if self.shows:
            tqdm.write(
                f"{self.run}, step {step}: " + ", ".join(f"dev {name} {value:.4f}" for name, value in metrics.items()), file=sys.stderr
            )
            self.waiting.append(("eval", step, metrics, time.time()))
            self._write()

    def _write(self) -> None:
        """What waits, into TensorBoard's file."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        for prefix, step, figures, when in self.waiting:
            values = [Summary.Value(tag=f"{prefix}/{name}", simple_value=value) for name, value in figures.items()]
            self.events.file_writer.add_summary(Summary(value=values), step, when)
        self.waiting = []

    def close(self) -> None:
        self.bar.close()
        if self.shows:
            self._write()
            self.events.close()
