"""How often each training set was seen, among the figures of the training."""

from snaketrain.extras.mixtures.sampling import MixedBatches
from snaketrain.training.callbacks import Callback
from snaketrain.training.state import TrainState


class TimesSeen(Callback):
    observes_only = True

    def __init__(self, batches: MixedBatches):
        self.batches = batches

    def on_log(self, state: TrainState, figures: dict[str, float]) -> None:
        figures |= {f"times_seen_{name}": times for name, times in self.batches.times_seen(state.step).items()}
