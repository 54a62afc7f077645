"""How a training is watched, saved and stopped, and how its batches are loaded."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from snaketrain.data.loading.loader import Loader
from snaketrain.runtime.journal import Clock
from snaketrain.strategies.base import Strategy
from snaketrain.training.callbacks import Callback
from snaketrain.training.checkpoints.formats import FormatName
from snaketrain.training.checkpoints.ranking import BY_LOSS, Selection
from snaketrain.training.trajectory import Trajectory


class StopRequest(Protocol):
    def requested(self) -> bool: ...


class NeverStop:
    def requested(self) -> bool:
        return False


class StopAgreement:
    """Polled once a batch. Each answer was all-reduced during the batch before, so that no rank waits for another."""

    def __init__(self, strategy: Strategy, stop: StopRequest):
        self.strategy, self.stop = strategy, stop
        self._exchanged: Callable[[], list[float]] | None = None

    def poll(self) -> bool:
        before, self._exchanged = self._exchanged, self.strategy.all_reduce_scalars_ahead(float(self.stop.requested()))
        return before is not None and before()[0] > 0


@dataclass(frozen=True)
class TrainerOptions:
    selection: Selection = BY_LOSS  # which metric ranks the checkpoints
    keep_best: int = 2
    checkpoint_format: FormatName = "auto"
    callbacks: Sequence[Callback] = ()
    log_every: int = 10
    reduce_batch_on_oom: bool = False
    until: int | None = None  # the last step to take now; it is saved, and another start continues from there
    trajectory: Trajectory | None = None  # fingerprints for the checkpoints, by which other trainings may continue from them
    resume_changed: bool = False  # continue a training that was begun with other settings, whose result is then that of neither
    loader: Loader = field(default_factory=Loader)
    stop: StopRequest = field(default_factory=NeverStop)
    clock: Clock = field(default_factory=lambda: Clock(time.time()))
