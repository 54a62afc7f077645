"""Figures of the machine, while something runs."""

import os
import time

import limits

from snaketrain.training.callbacks.machine_load import figures, watched


def test_figures_meanwhile_and_none_after(monkeypatch):
    monkeypatch.setenv("PATH", "")
    found = []
    with watched(found.append, interval_seconds=0.05):
        limits.until(lambda: len(found) >= 2, 20)
    told = len(found)
    time.sleep(0.2)
    assert len(found) == told
    assert found[0].keys() == {"cpu_percent", "memory_mb", "process_memory_mb"}
    assert 0 <= found[0]["cpu_percent"] <= 100 and 0 < found[0]["process_memory_mb"] < found[0]["memory_mb"]


def test_each_gpu(tmp_path, monkeypatch):
    """As nvidia-smi prints them."""
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho '0, 87, 40536'\necho '1, 3, 512'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = figures()
    assert found["gpu_0_percent"] == 87 and found["gpu_0_memory_mb"] == 40536 and found["gpu_1_percent"] == 3


def test_what_cannot_be_told_ends_it_quietly():
    def tell(figures):
        raise OSError("disk full")

    with watched(tell, interval_seconds=0.01):
        time.sleep(0.1)
