"""How a training is watched, saved and stopped, and how its batches are loaded."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from snaketrain.data.loading.loader import Loader
from snaketrain.runtime.training_progress import Clock
from snaketrain.training.callbacks.base import Callback
from snaketrain.training.checkpoints.formats import FormatName
from snaketrain.training.checkpoints.ranking import BY_LOSS, Selection
from snaketrain.training.stop_agreement import NeverStop, StopRequest
from snaketrain.training.trajectory import Trajectory


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
