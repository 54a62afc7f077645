"""TensorBoard event files, with the same figures as the journal, where the package tensorboard is installed."""

import logging
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.training.callbacks.base import Callback
from snaketrain.training.state import TrainState

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

BUNDLE_SECONDS = 1.0  # figures are written in bundles, since writing each one slows small steps down


class TensorBoard(Callback):
    """Written by the first rank."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.waiting: list[tuple[str, int, dict[str, float], float]] = []
        self.written = time.monotonic()
        self.events: SummaryWriter | None = None

    def on_train_start(self, state: TrainState) -> None:
        if state.rank == 0 and find_spec("tensorboard") is None:
            logging.info("no files for TensorBoard are written: `pip install tensorboard` to get them")
        elif state.rank == 0:
            from torch.utils.tensorboard import SummaryWriter

            self.events = SummaryWriter(str(self.folder), purge_step=state.step + 1, max_queue=1000)

    def on_log(self, state: TrainState, figures: dict[str, float]) -> None:
        self._add("train", state.step, figures)

    def on_evaluation(self, state: TrainState, metrics: dict[str, float]) -> None:
        if state.step:
            self._add("eval", state.step, metrics)

    def _add(self, prefix: str, step: int, figures: dict[str, float]) -> None:
        if self.events:
            self.waiting.append((prefix, step, figures, time.time()))
            if time.monotonic() - self.written > BUNDLE_SECONDS:
                self._write(self.events)

    def _write(self, events: "SummaryWriter") -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        assert events.file_writer is not None, "until it is closed"
        for prefix, step, figures, when in self.waiting:
            values = [Summary.Value(tag=f"{prefix}/{name}", simple_value=value) for name, value in figures.items()]
            events.file_writer.add_summary(Summary(value=values), step, when)
        self.waiting, self.written = [], time.monotonic()

    def on_train_end(self, state: TrainState) -> None:
        if self.events:
            self._write(self.events)
            self.events.close()

    def on_error(self, state: TrainState, error: BaseException) -> None:
        self.on_train_end(state)
