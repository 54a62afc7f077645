"""Callbacks that watch a training: nothing here can change its result."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snaketrain.runtime.journal import Journal
    from snaketrain.strategies.base import Strategy
    from snaketrain.training.callbacks.base import Callback


def default_callbacks(
    run: str, folder: Path, strategy: "Strategy", journal: "Journal", stall_seconds: float, profile: str | None
) -> list["Callback"]:
    """The callbacks of a training that the workflow starts."""
    from snaketrain.training.callbacks.machine_load import MachineLoad
    from snaketrain.training.callbacks.profiler import Profiler
    from snaketrain.training.callbacks.progress import Progress
    from snaketrain.training.callbacks.samples import Samples
    from snaketrain.training.callbacks.stall_watchdog import StallWatchdog
    from snaketrain.training.callbacks.tensorboard import TensorBoard

    callbacks = [
        StallWatchdog(folder / "logs/stalled", strategy.rank, strategy.world_size, stall_seconds),
        Progress(run, journal),
        TensorBoard(folder / "tensorboard"),
        MachineLoad(journal),
        Samples(journal),
    ]
    if profile:
        first, number = map(int, profile.split(":"))
        callbacks.append(Profiler(folder / "profile", first, number))
    return callbacks
