"""A requested GPU that is missing is an error at the start, on each rank that lacks it."""

import platform

import pytest
import torch

from snaketrain.config.schema import Compute
from snaketrain.strategies.base import Strategy


@pytest.fixture
def gpus(monkeypatch):
    """Sets how many GPUs torch finds, as which rank."""

    def found(count: int, local_rank: int = 0, visible: str | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setenv("RANK", str(4 + local_rank))
        monkeypatch.setenv("WORLD_SIZE", "8")
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return found


def refusal() -> str:
    with pytest.raises(SystemExit) as error:
        Strategy(device="cuda")
    return str(error.value)


def test_no_gpu_is_an_error_with_rank_node_and_remedy(gpus):
    gpus(0, visible="")
    found = refusal()
    assert f"rank 4 on {platform.node()} finds no GPU (CUDA_VISIBLE_DEVICES is '')" in found
    assert "compute.gpus" in found and "compute.device: cpu" in found
    gpus(0)
    assert "CUDA_VISIBLE_DEVICES is not set" in refusal()


def test_fewer_gpus_than_processes_are_an_error_on_the_rank_without_one(gpus):
    gpus(2, local_rank=2, visible="0,1")
    assert "rank 6 on" in refusal() and "sees 2 GPUs, fewer than processes on this node" in refusal()
    gpus(2, local_rank=1)
    assert Strategy(device="cuda", precision="fp32").device.type == "cuda"


def test_the_cpu_can_still_be_requested(gpus):
    gpus(0)
    assert Strategy(device="cpu").device.type == Strategy(device="auto").device.type == "cpu"


@pytest.mark.parametrize(
    ("compute", "device"),
    [
        ({}, "auto"),
        ({"device": "cpu"}, "cpu"),
        ({"gpus": 2}, "cuda"),
        ({"sbatch": "--gpus-per-node=a100:4 --exclusive"}, "cuda"),
        ({"sbatch": "--gpus-per-node=1", "device": "cpu"}, "cpu"),
        ({"sbatch": "--exclusive"}, "auto"),
    ],
)
def test_a_job_that_requested_gpus_requires_them(compute, device):
    assert Compute(**compute).required_device == device
