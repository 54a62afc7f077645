"""The pipeline dimension of `mesh`: the losses of one process with every schedule, beside other dimensions, and from other checkpoints."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from distributed.test_strategies import job, run

STEP = "checkpoints/step-00000006"
FROM_THE_START = ["1f1b", "zbv"]
RESUMED = {  # by name: whose checkpoint
    "interleaved from single": "single",
    "single from 1f1b": "1f1b",
    "fsdp from zbv": "zbv",
    "1f1b and shard from 1f1b": "1f1b",
    "zbv and tensor from zbv": "zbv",
}


def pipelined(schedule: str, checkpoints: Path, format: str = "auto", accumulate: int = 4, **degrees: int) -> dict[str, Any]:
    return job("mesh", "deep", checkpoints, {"pipeline": 2, "schedule": schedule, **degrees}, format, accumulate=accumulate)


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, Any]:
    """What each training found, on two processes or four."""
    folder = tmp_path_factory.mktemp("pipeline")

    def trained(processes: int, jobs: dict[str, dict[str, Any]]) -> dict[str, Any]:
        for name in RESUMED.keys() & jobs.keys():
            shutil.copytree(folder / RESUMED[name] / STEP, folder / name / STEP)
        return run(folder, processes, {name: ("trained", each) for name, each in jobs.items()})

    first = {
        "single": job("single", "deep", folder / "single"),
        "1f1b": pipelined("1f1b", folder / "1f1b", accumulate=12),  # more than a batch has: some microbatches do not count
        "zbv": pipelined("zbv", folder / "zbv", "whole"),
    }
    then = {
        "interleaved from single": pipelined("interleaved", folder / "interleaved from single"),
        "single from 1f1b": job("single", "deep", folder / "single from 1f1b"),
        "fsdp from zbv": job("fsdp", "deep", folder / "fsdp from zbv"),
    }
    on_four = {
        "1f1b and shard from 1f1b": pipelined("1f1b", folder / "1f1b and shard from 1f1b", shard=2),
        "zbv and tensor from zbv": pipelined("zbv", folder / "zbv and tensor from zbv", tensor=2),
    }
    return trained(2, first) | trained(2, then) | trained(4, on_four)


@pytest.mark.parametrize("name", [*FROM_THE_START, *RESUMED])
def test_losses_norms_and_examples_are_those_of_single(found, name):
    training, expected = found[name], found["single"]
    assert training["start"] == (0 if name in FROM_THE_START else 6)
    steps = len(training["losses"])
    assert steps == 12 - training["start"]
    assert training["losses"] == pytest.approx(expected["losses"][-steps:], rel=1e-5)
    assert training["norms"] == pytest.approx(expected["norms"][-steps:], rel=1e-4)
    assert training["metrics"] == pytest.approx(expected["metrics"], rel=1e-5)
    assert training["ids"] == expected["ids"][-steps:]


@pytest.mark.parametrize("name", [*FROM_THE_START, *RESUMED])
def test_saved_weights_are_evaluated_as_in_training(found, name):
    assert found[name]["placed"] == pytest.approx(found[name]["metrics"], rel=1e-5)
