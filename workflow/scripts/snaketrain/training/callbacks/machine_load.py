"""Records the load of the machine every few seconds, from a thread of the first rank."""

import contextlib
import shutil
import subprocess
import threading

import psutil

from snaketrain.runtime.journal import Journal
from snaketrain.training.callbacks.base import Callback
from snaketrain.training.state import TrainState

INTERVAL_SECONDS = 5.0
ASK_GPUS = ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits"]


class MachineLoad(Callback):
    """Writes the load of the first rank's machine into the journal."""

    def __init__(self, journal: Journal, interval_seconds: float = INTERVAL_SECONDS):
        self.journal, self.interval_seconds = journal, interval_seconds
        self.over = threading.Event()
        self.thread: threading.Thread | None = None

    def on_train_start(self, state: TrainState) -> None:
        if state.rank == 0:
            self.thread = threading.Thread(target=self._sample, args=(state,), name="machine load", daemon=True)
            self.thread.start()

    def _sample(self, state: TrainState) -> None:
        psutil.cpu_percent()  # the first call starts the measurement
        while not self.over.wait(self.interval_seconds):
            try:
                self.journal.write("system", step=state.step, metrics=figures())
            except Exception:  # a full disk, or another training in the folder: the trainer finds out itself
                return

    def on_train_end(self, state: TrainState) -> None:
        self.over.set()
        if self.thread:
            self.thread.join()

    def on_error(self, state: TrainState, error: BaseException) -> None:
        self.on_train_end(state)


def figures() -> dict[str, float]:
    """Load of the CPUs, memory of the machine and of this process, and load and memory of each GPU."""
    found = {
        "cpu_percent": psutil.cpu_percent(),
        "memory_mb": round(psutil.virtual_memory().used / 2**20, 1),
        "process_memory_mb": round(psutil.Process().memory_info().rss / 2**20, 1),
    }
    return found | gpus()


def gpus() -> dict[str, float]:
    if not shutil.which(ASK_GPUS[0]):
        return {}
    found: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        for line in subprocess.run(ASK_GPUS, capture_output=True, text=True, timeout=10).stdout.splitlines():
            number, busy, memory_mb = map(float, line.split(","))
            found |= {f"gpu_{number:.0f}_percent": busy, f"gpu_{number:.0f}_memory_mb": memory_mb}
    return found
