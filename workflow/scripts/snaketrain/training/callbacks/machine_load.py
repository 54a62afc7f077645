"""How busy the machine is while a training runs: figures every few seconds, taken by a thread of the first process."""

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator

import psutil

INTERVAL_SECONDS = 5.0
ASK_GPUS = ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits"]


@contextlib.contextmanager
def watched(tell: Callable[[dict[str, float]], None], interval_seconds: float = INTERVAL_SECONDS) -> Iterator[None]:
    """Meanwhile `tell` is called with figures by name."""
    over = threading.Event()

    def sample() -> None:
        psutil.cpu_percent()  # counts from here on
        while not over.wait(interval_seconds):
            try:
                tell(figures())
            except Exception:  # the disk is full, or the folder another's: the training finds out by itself
                return

    thread = threading.Thread(target=sample, name="machine load", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def figures() -> dict[str, float]:
    """Of the CPUs and the memory of the machine, of the memory of this process, and of each GPU."""
    found = {
        "cpu_percent": psutil.cpu_percent(),
        "memory_mb": round(psutil.virtual_memory().used / 2**20, 1),
        "process_memory_mb": round(psutil.Process().memory_info().rss / 2**20, 1),
    }
    return found | gpus()


def gpus() -> dict[str, float]:
    if not shutil.which(ASK_GPUS[0]):
        return {}
    found = {}
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        for line in subprocess.run(ASK_GPUS, capture_output=True, text=True, timeout=10).stdout.splitlines():
            number, busy, memory_mb = map(float, line.split(","))
            found |= {f"gpu_{number:.0f}_percent": busy, f"gpu_{number:.0f}_memory_mb": memory_mb}
    return found
