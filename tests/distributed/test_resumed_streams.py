"""Trainings on a stream: the same on any number of processes, with a worker, and when they are stopped and resumed."""

import signal
from pathlib import Path
from typing import Any

import pytest
from distributed import forking
from distributed.running import arguments, interrupted, log_of, losses, start, train
from distributed.test_own_tasks import CNN, DIGITS, EXAMPLES, curves

from snaketrain.config.schema import Data
from snaketrain.data.preparing import prepare_items
from snaketrain.runtime.journal import read_events
from snaketrain.runtime.manifests import Manifest, write_manifest

SETTINGS: dict[str, Any] = {
    "task": DIGITS,
    "model": CNN,
    "batch_size": 24,
    "steps": 30,
    "evaluate_every": 10,
    "learning_rate": 5e-3,
}  # small: rounding is not amplified


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """300 digits, which are read more than once, and a dev set."""
    folder = tmp_path_factory.mktemp("digits")
    dev = {"use": f"{EXAMPLES}/digits.py:Digits", "arguments": {"first": 300}}
    streamed = {"use": f"{EXAMPLES}/digits.py:DigitStream", "arguments": {"shift": 1, "last": 300}}
    given = Data.model_validate({"name": "items", "train": streamed, "dev": dev, "test_fraction": 0, "limit_dev": 37})
    write_manifest(folder / "manifest.json", Manifest("prepare_data", "x", {}, {}, {}, prepare_items(given, folder)))
    return folder / "manifest.json"


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "alone"
    found = train(data, folder, **SETTINGS)
    assert len(found) == 30 and found[30] < found[1] - 0.02
    return folder


def test_a_stream_trains_equally_on_two_processes(data, alone, tmp_path):
    found = train(data, tmp_path / "several", 2, accumulate=2, **SETTINGS)
    assert found == pytest.approx(losses(alone), rel=1e-5)
    assert curves(tmp_path / "several", "eval") == pytest.approx(curves(alone, "eval"), rel=1e-5)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGKILL, -9)], ids=["stopped", "killed"])
def test_a_stopped_or_killed_training_on_a_stream_resumes_bit_for_bit(data, alone, tmp_path, number, code):
    """Killed, it has read past its last checkpoint."""
    folder = tmp_path / "parts"
    pids = start(data, folder, **SETTINGS)
    assert interrupted(pids, number, lambda: len(losses(folder)) >= 15 and [*folder.glob("checkpoints/step-*")]) == [code]
    done = max(losses(folder))
    with_worker = [*arguments(data, folder, **SETTINGS), "--loader-workers", "1"]
    assert forking.run(with_worker, 1, log_of(folder)) == [0], log_of(folder).read_text()
    begins = [line["resume_step"] for line in read_events(folder / "journal.jsonl")[0] if line["event"] == "attempt"]
    assert begins == [0, done] if number == signal.SIGTERM else begins in ([0, 10], [0, 20])
    assert losses(folder) == losses(alone)
    assert curves(folder, "eval") == curves(alone, "eval")
    assert "did not resume" not in log_of(folder).read_text()


def test_a_longer_training_on_a_stream_continues_another_one(data, tmp_path):
    longer = {**SETTINGS, "schedule": "constant", "warmup": 5}
    train(data, tmp_path / "results/runs/short/training", **longer | {"steps": 20})
    found = train(data, tmp_path / "results/runs/long/training", **longer)
    lines = read_events(tmp_path / "results/runs/long/training/journal.jsonl")[0]
    begins = [line["resume_step"] for line in lines if line["event"] == "attempt"]
    assert begins == [20], log_of(tmp_path / "results/runs/long/training").read_text()
    assert found == train(data, tmp_path / "fresh", **longer)
