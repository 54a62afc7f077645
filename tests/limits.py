"""Time limits for any machine. Tests state each limit for an idle machine; a slow or busy one gets more time, never less."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

WORK = "import numpy; sum(i * i for i in range(1_000_000))"
WORK_SECONDS = 0.25  # on two idle cores
MOST = 10.0  # a hanging test must end at some point


def seconds(idle: float) -> float:
    """The limit on this machine now for something that may take this many seconds on an idle one."""
    return idle * slowness()


def whole_seconds(idle: float) -> int:
    return math.ceil(seconds(idle))


def slowness() -> float:
    """From the speed measured at the first call and the current load, which may have risen since."""
    load = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    return min(max(1.0, measured(), load), MOST)


@cache
def measured() -> float:
    """The time for starting a process, importing and computing, relative to an idle machine."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", WORK], check=True)
    return (time.monotonic() - began) / WORK_SECONDS


def until(holds: Callable[[], Any], idle: float = 60, process: subprocess.Popen | None = None, story: Callable[[], str] = str) -> Any:
    """The first true answer, during which `process` must keep running; `story`: what to show if there is none."""
    began = time.monotonic()
    while not (answer := holds()):
        assert process is None or process.poll() is None, f"it ended early, with {process.returncode}\n{story()}"
        waited = time.monotonic() - began
        assert waited < seconds(idle), f"waited {waited:.0f} seconds in vain (slowness {slowness():.1f})\n{story()}"
        time.sleep(0.02)
    return answer
