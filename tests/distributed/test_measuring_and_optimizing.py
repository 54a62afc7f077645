"""Metrics that are not sums, several optimizers, and schedules that follow the metric: equal on any number of real processes and after a resume."""

import signal
from pathlib import Path

import pytest
from distributed.running import interrupted, losses, start, train

from snaketrain.runtime.journal import read_events

GROUPS = [
    {"match": "*.encoder.*", "dimensions": 2, "rate_scale": 2.0, "optimizer": {"use": "torch.optim.Muon", "arguments": {"ns_steps": 3}}}
]
PLATEAU = {"use": "torch.optim.lr_scheduler.ReduceLROnPlateau", "arguments": {"factor": 0.5, "patience": 0, "threshold": 0.5}}
SETTINGS = {"metrics": ["auroc", "matthews_correlation"], "groups": GROUPS, "schedule": PLATEAU, "warmup": 2, "epochs": 3}


def events(folder: Path, kind: str) -> list[dict]:
    return [line["metrics"] for line in read_events(folder / "journal.jsonl")[0] if line["event"] == kind]


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "run"
    train(data, folder, **SETTINGS)
    return folder


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_train_and_measure_like_one(data, alone, tmp_path, strategy):
    found = train(data, tmp_path, 2, strategy=strategy, **SETTINGS)
    assert found == pytest.approx(losses(alone), rel=1e-4)
    measured, expected = events(tmp_path, "eval"), events(alone, "eval")
    assert len(measured) == len(expected) and {"auroc", "matthews_correlation"} < measured[0].keys()
    assert measured[0] == pytest.approx(expected[0], rel=1e-6), "of the initial weights"
    for mine, theirs in zip(measured, expected, strict=True):
        assert mine == pytest.approx(theirs, abs=0.02)  # Muon computes in bf16, and two examples may swap places
    rates = [[line["learning_rate"] for line in events(folder, "train")] for folder in (tmp_path, alone)]
    assert rates[0] == pytest.approx(rates[1]) and min(rates[1][2:]) < max(rates[1]), "the plateau has lowered it"


def test_a_stopped_training_resumes_at_the_lowered_rate(data, alone, tmp_path):
    pids = start(data, tmp_path, **SETTINGS)
    assert interrupted(pids, signal.SIGTERM, lambda: len(losses(tmp_path)) >= 17) == [75]
    stopped = max(losses(tmp_path))
    assert stopped < max(losses(alone))
    assert train(data, tmp_path, **SETTINGS) == losses(alone)
    rates = [
        {step: line["learning_rate"] for step, line in zip(losses(folder), events(folder, "train"), strict=True)}
        for folder in (tmp_path, alone)
    ]
    assert rates[0] == rates[1] and rates[0][stopped + 1] < max(rates[0].values())
