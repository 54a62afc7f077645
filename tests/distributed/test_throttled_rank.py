"""The extra `slow_ranks` in a training of several processes."""

import contextlib
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from snaketrain.extras.slow_ranks import slow_ranks
from snaketrain.runtime.journal import events_named

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import kill_anywhere
from distributed import forking


def throttle(pid: int, journal: Path, over: threading.Event) -> None:
    """Let the process run for a tenth of the time, once the training takes steps: each of its passes is stopped, also where all ranks share a core."""
    with contextlib.suppress(PermissionError):  # on a busy machine this thread would wake too late to stop it
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    while not over.is_set() and not any(events_named(journal, "train")):
        time.sleep(0.1)
    while not over.is_set():
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.03)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return
        time.sleep(0.003)


@pytest.mark.slow
def test_one_of_four_ranks_is_throttled(data, tmp_path, monkeypatch):
    monkeypatch.setattr(slow_ranks, "OVER_STEPS", 20)  # the ranks are forked from here
    monkeypatch.setattr(slow_ranks, "TIMED_EVERY", 1)
    larger = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 512}
    words = kill_anywhere.arguments(data, tmp_path / "run", 1, model=larger, epochs=5, evaluations_per_epoch=1)
    journal, over = tmp_path / "run/journal.jsonl", threading.Event()
    forking.preload()
    ranks = forking.start(words, 4, tmp_path / "log")
    threading.Thread(target=throttle, args=(ranks[2], journal, over), daemon=True).start()
    codes = forking.wait(ranks)
    over.set()
    assert codes == [0] * 4, (tmp_path / "log").read_text()
    (told,) = events_named(journal, "warning")
    assert re.fullmatch(r"rank 2 on \S+ \(cpu\) has computed [\d.]+ times as long as the median rank, for 20 steps", told["message"])
    assert f"warning: {told['message']}\n" in (tmp_path / "log").read_text()
    *_, measured = (event["metrics"] for event in events_named(journal, "system") if "compute_seconds_max" in event["metrics"])
    assert measured["compute_seconds_max"] > 1.2 * measured["compute_seconds_median"]
