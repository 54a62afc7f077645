"""Waiting for cancelled jobs: a training saves before it ends."""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping

from snaketrain.slurm.client import Slurm, SlurmError

ENDING_SECONDS = 300  # so long is waited for jobs that save
SECONDS_BETWEEN_LOOKS, SECONDS_BETWEEN_LINES = 1.0, 10.0
NAMES_SHOWN = 5


def wait_for_end(slurm: Slurm, jobs: Mapping[str, str], say: Callable[[str], None]) -> set[str]:
    """Which of the jobs, names by number, have not ended after a while, or when Ctrl-C is pressed."""
    left, began, reported = set(jobs), time.monotonic(), 0.0
    say(f"Cancelled {listed(jobs, left)}. Waiting until they have saved and ended; Ctrl-C leaves at once, and they save all the same.")
    try:
        while left and (waited := time.monotonic() - began) < ENDING_SECONDS:
            with contextlib.suppress(SlurmError):  # asked again
                left = slurm.in_queue(left)
            if left and waited - reported > SECONDS_BETWEEN_LINES:
                reported = waited
                say(f"Still waiting for {listed(jobs, left)}, after {waited:.0f} seconds.")
            if left:
                time.sleep(SECONDS_BETWEEN_LOOKS)
    except KeyboardInterrupt:
        say(f"Not waiting any longer for {listed(jobs, left)}. The next start waits until they have ended.")
        return left
    say(f"All have ended, after {time.monotonic() - began:.0f} seconds." if not left else f"Still running: {listed(jobs, left)}.")
    return left


def listed(jobs: Mapping[str, str], numbers: Iterable[str]) -> str:
    shown = [f"{number} ({jobs[number]})" for number in sorted(numbers, key=lambda number: (len(number), number))]
    more = f" and {len(shown) - NAMES_SHOWN} more" if len(shown) > NAMES_SHOWN else ""
    return f"SLURM job{'s' if len(shown) > 1 else ''} {', '.join(shown[:NAMES_SHOWN])}{more}"
