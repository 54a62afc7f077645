"""The limit on open files, raised where many ranks connect to one process."""

import resource

import pytest

from snaketrain.launch import slurm_step
from snaketrain.runtime import processes
from snaketrain.slurm.client import Allocation, Slurm


@pytest.fixture
def limits_of(monkeypatch):
    """Pretends that the process has these limits, and remembers what they are set to."""

    def pretend(soft: int, hard: int) -> list[tuple[int, int]]:
        calls: list[tuple[int, int]] = []
        monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda _, limits: calls.append(limits))
        return calls

    return pretend


@pytest.mark.parametrize(("ranks", "calls"), [(128, []), (1024, [(524288, 524288)])])
def test_the_soft_limit_is_raised_to_the_hard_one_for_many_ranks(limits_of, ranks, calls):
    made = limits_of(1024, 524288)
    assert processes.raise_limit(ranks) is None
    assert made == calls


def test_a_hard_limit_that_is_too_low_is_reported(limits_of):
    calls = limits_of(1024, 4096)
    assert "1024 ranks may need 4352 open files" in processes.raise_limit(1024)
    assert calls == [(4096, 4096)]


@pytest.mark.parametrize("limits", [(resource.RLIM_INFINITY, resource.RLIM_INFINITY), (1024, resource.RLIM_INFINITY)])
def test_without_a_hard_limit_nothing_is_reported(limits_of, limits):
    limits_of(*limits)
    assert processes.raise_limit(1024) is None


def test_the_process_that_all_ranks_of_a_slurm_job_connect_to_raises_its_limit(monkeypatch):
    class Asked(Exception): ...

    def asked(ranks: int) -> None:
        raise Asked(ranks)

    monkeypatch.setattr(slurm_step, "raise_limit", asked)
    job, size = Allocation("7", 0, ("a1", "a2")), slurm_step.NodeSize(processes=8, threads=4)
    with pytest.raises(Asked, match="16"):
        slurm_step.Step(Slurm(), job, ["a1", "a2"], size, 60, lambda: False).run(["train_model.py"], "7.0")
