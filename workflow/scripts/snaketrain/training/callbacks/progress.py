"""Shows where a training is: one live line in a terminal, whole lines in a log."""

import logging
import shutil
import sys
import time

from snaketrain.runtime.journal import Event, Journal, TrainingProgress
from snaketrain.training.callbacks.base import Callback
from snaketrain.training.state import TrainState

LOG_SECONDS = 10.0  # between two lines in a log
LIVE_SECONDS = 0.2  # drawing at each line of the journal would slow quick steps down
ERASE_LINE = "\r\x1b[K"


class Progress(Callback):
    """Follows the journal, which only rank 0 writes: the other ranks show nothing."""

    def __init__(self, run: str, journal: Journal):
        self.progress = TrainingProgress(run)
        self.live = sys.stderr.isatty()
        self.shown = time.monotonic()
        journal.listeners.append(self.follow)

    def follow(self, event: Event) -> None:
        self.progress.add(event)
        if event["event"] in ("train", "eval"):
            self.show(now=event["event"] == "eval")

    def show(self, now: bool) -> None:
        if not now and time.monotonic() - self.shown < (LIVE_SECONDS if self.live else LOG_SECONDS):
            return
        self.shown = time.monotonic()
        if self.live:  # the cursor stays at the beginning of the line, where the next message replaces it
            line = self.progress.line[: shutil.get_terminal_size().columns - 1]
            print(f"{ERASE_LINE}{line}", end="\r", file=sys.stderr, flush=True)
        else:
            logging.info("%s", self.progress.line)

    def on_train_end(self, state: TrainState) -> None:
        if self.live:
            print(file=sys.stderr, flush=True)
