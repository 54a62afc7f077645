"""A `torch.profiler` trace of a few steps, one file per rank, to be opened in Perfetto or chrome://tracing."""

from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from snaketrain.training.callbacks.base import Callback
from snaketrain.training.state import StepOutcome, TrainState


class Profiler(Callback):
    """Traces `steps` steps from `first_step` on; a training that resumes within them leaves no trace."""

    def __init__(self, folder: Path, first_step: int, steps: int):
        self.folder, self.first_step, self.last_step = folder, first_step, first_step + steps - 1
        self.running: profile | None = None

    def on_train_start(self, state: TrainState) -> None:
        self._start(state)

    def on_step_end(self, state: TrainState, outcome: StepOutcome) -> None:
        if self.running and state.step == self.last_step:
            self.running.stop()
            self.folder.mkdir(parents=True, exist_ok=True)
            self.running.export_chrome_trace(str(self.folder / f"rank-{state.rank}-steps-{self.first_step}-{self.last_step}.json.gz"))
            self.running = None
        self._start(state)

    def _start(self, state: TrainState) -> None:
        if state.step + 1 == self.first_step:
            cuda = [ProfilerActivity.CUDA] if state.strategy.device.type == "cuda" else []
            self.running = profile(activities=[ProfilerActivity.CPU, *cuda], record_shapes=True)
            self.running.start()

    def on_train_end(self, state: TrainState) -> None:
        if self.running:
            self.running.stop()
            self.running = None

    def on_error(self, state: TrainState, error: BaseException) -> None:
        self.on_train_end(state)
