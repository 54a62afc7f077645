"""Shows progress: a bar in a terminal, lines in a log."""

import sys
import time

from tqdm import tqdm

from snaketrain.training.callbacks.base import Callback
from snaketrain.training.state import TrainState

BUNDLE_SECONDS = 1.0  # redrawing the bar at each line of the journal would slow small steps down


class Progress(Callback):
    """Only the first rank shows anything."""

    def __init__(self, run: str, steps: int, shows: bool):
        self.run, self.steps, self.shows = run, steps, shows
        self.shown = time.monotonic()

    def on_train_start(self, state: TrainState) -> None:
        # a moving bar in a terminal, an occasional line in a log file
        interval = 0.5 if sys.stderr.isatty() else 15
        self.bar = tqdm(
            initial=state.step,
            total=self.steps,
            desc=self.run,
            unit="step",
            mininterval=interval,
            disable=not self.shows,
            dynamic_ncols=True,
        )

    def on_log(self, state: TrainState, figures: dict[str, float]) -> None:
        if self.shows and (state.step == self.steps or time.monotonic() - self.shown > BUNDLE_SECONDS):
            self.bar.set_postfix_str(
                f"loss {figures.get('loss', float('nan')):.4f}, {figures['examples_per_second']:.0f} examples/s", refresh=False
            )
            self.bar.update(state.step - self.bar.n)
            self.shown = time.monotonic()

    def on_evaluation(self, state: TrainState, metrics: dict[str, float]) -> None:
        if self.shows and state.step:
            figures = ", ".join(f"dev {name} {value:.4f}" for name, value in metrics.items())
            tqdm.write(f"{self.run}, step {state.step}: {figures}", file=sys.stderr)

    def on_train_end(self, state: TrainState) -> None:
        self.bar.close()
