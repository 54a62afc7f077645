"""The machine's load, recorded while a training runs."""

from typing import Any

import limits
import pytest

from snaketrain.strategies.base import Strategy
from snaketrain.tasks.base import Task
from snaketrain.training.state import TrainState
from snaketrain.training.watching import MachineLoad, figures


class Journal:
    def __init__(self) -> None:
        self.lines: list[dict] = []

    def write(self, event: str, **content: Any) -> None:
        self.lines.append(content)


@pytest.fixture
def state():
    return TrainState(Task(), Strategy("cpu", "fp32"), {}, step=7)


def test_figures_are_recorded_until_the_end(monkeypatch, state):
    monkeypatch.setenv("PATH", "")
    journal = Journal()
    load = MachineLoad(journal, interval_seconds=0.05)
    load.on_train_start(state)
    limits.until(lambda: len(journal.lines) >= 2, 20)
    load.on_train_end(state)
    assert not load.thread.is_alive()
    found = journal.lines[0]["metrics"]
    assert journal.lines[0]["step"] == 7 and found.keys() == {"cpu_percent", "memory_mb", "process_memory_mb"}
    assert 0 <= found["cpu_percent"] <= 100 and 0 < found["process_memory_mb"] < found["memory_mb"]


def test_each_gpu(programs):
    """As nvidia-smi prints them."""
    programs(**{"nvidia-smi": "echo '0, 87, 40536, 312.5'; echo '1, 3, 512, [N/A]'"})
    found = figures()
    assert found["gpu_0_percent"] == 87 and found["gpu_0_memory_mb"] == 40536 and found["gpu_1_percent"] == 3
    assert found["gpu_0_watts"] == 312.5 and found["gpu_1_memory_mb"] == 512 and "gpu_1_watts" not in found


def test_a_write_error_ends_it_quietly(state, monkeypatch):
    journal = Journal()

    def write(event: str, **content: Any) -> None:
        journal.lines.append(content)
        raise OSError("disk full")

    journal.write = write
    load = MachineLoad(journal, interval_seconds=0.01)
    load.on_train_start(state)
    load.thread.join(limits.seconds(20))
    assert not load.thread.is_alive() and len(journal.lines) == 1
