"""Which cores a rank is bound to, by a /sys and an nvidia-smi of ours; and that the kernel really does it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from snaketrain.config.schema import Compute
from snaketrain.orchestration import launching
from snaketrain.runtime import ranks
from snaketrain.runtime.ranks import Topology, cores_of, cpus_of

SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"


@pytest.fixture
def machine(tmp_path) -> Topology:
    """Two NUMA nodes of four cores with two threads each, numbered as Linux does; GPUs 0 and 1 at node 1, 2 and 3 at node 0."""
    system = tmp_path / "devices/system"
    for node, cpus in enumerate(("0-3,8-11", "4-7,12-15")):
        (system / f"node/node{node}").mkdir(parents=True)
        (system / f"node/node{node}/cpulist").write_text(f"{cpus}\n")
    for cpu in range(16):
        (system / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        (system / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(f"{cpu % 8},{cpu % 8 + 8}\n")
    for bus, node in {"3b": 1, "5e": 1, "86": 0, "af": 0, "d8": -1}.items():
        (tmp_path / f"bus/pci/devices/0000:{bus}:00.0").mkdir(parents=True)
        (tmp_path / f"bus/pci/devices/0000:{bus}:00.0/numa_node").write_text(f"{node}\n")
    return Topology(tmp_path)


def shares(machine: Topology, ranks: int, allowed=range(16), gpus=()) -> list[list[int]]:
    return [sorted(cores_of(rank, ranks, machine.cores(allowed), machine, list(gpus))) for rank in range(ranks)]


def test_a_gpus_ranks_share_the_cores_of_its_node(machine):
    gpus = [machine.node_of_gpu(f"00000000:{bus}:00.0") for bus in ("3B", "5E", "86", "AF")]
    assert gpus == [1, 1, 0, 0]
    assert shares(machine, 4, gpus=gpus) == [[4, 5, 12, 13], [6, 7, 14, 15], [0, 1, 8, 9], [2, 3, 10, 11]]


def test_without_gpus_ranks_share_all_cores_equally_and_no_core_is_split(machine):
    assert shares(machine, 2) == [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]
    assert shares(machine, 3) == [[0, 1, 8, 9], [2, 3, 4, 10, 11, 12], [5, 6, 7, 13, 14, 15]]


def test_only_allowed_cores_are_taken(machine):
    assert shares(machine, 2, allowed=[1, 2, 9, 10]) == [[1, 9], [2, 10]]
    assert shares(machine, 2, allowed=[1, 2], gpus=[1, 1]) == [[1], [2]], "none of node 1 is allowed"


def test_a_gpu_without_a_known_node_is_near_no_core(machine):
    assert machine.node_of_gpu("00000000:D8:00.0") is None and machine.node_of_gpu("00000000:99:00.0") is None
    assert shares(machine, 2, gpus=[None, None]) == shares(machine, 2)


def test_fewer_cores_than_ranks_bind_nothing(machine):
    assert [] in shares(machine, 3, allowed=[0, 1])


@pytest.mark.parametrize(("visible", "expected"), [(None, ["3B", "5E", "86"]), ("2,0", ["86", "3B"]), ("GPU-b", ["5E"]), ("", [])])
def test_a_process_sees_its_own_gpus_in_its_own_order(programs, monkeypatch, visible, expected):
    rows = "".join(f"{index}, GPU-{name}, 00000000:{bus}:00.0\\n" for index, name, bus in ((0, "a", "3B"), (1, "b", "5E"), (2, "c", "86")))
    programs(**{"nvidia-smi": f"printf '{rows}'"})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert ranks.visible_gpus() == [f"00000000:{bus}:00.0" for bus in expected]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_threads_of_torch_are_really_bound():
    code = (
        "from snaketrain.runtime.ranks import Ranks, bind; import os\n"
        "bind(Ranks.of_environment()); import torch; torch.rand(2000, 2000) @ torch.rand(2000, 2000)\n"
        "print(sorted({cpu for task in os.listdir('/proc/self/task') for cpu in os.sched_getaffinity(int(task))}))"
    )
    found = []
    for rank in (0, 1):
        ranks = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        environment = ranks | {"SNAKETRAIN_BIND": "numa", "PYTHONPATH": str(SCRIPTS), "PATH": "/usr/bin:/bin"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        found.append(set(cpus_of(done.stdout.strip(" []\n").replace(" ", ""))))
        assert f"rank {rank} is bound to CPUs" in done.stderr
    assert found[0] | found[1] == os.sched_getaffinity(0) and not found[0] & found[1]


@pytest.mark.parametrize("compute", [{}, {"processes": 2}, {"processes": 2, "launcher": "srun"}, {"launcher": "env"}])
def test_it_is_off_by_default_and_every_launcher_passes_it_on(compute):
    assert "SNAKETRAIN_BIND" not in launching.launch(Compute(**compute), in_slurm_job=False)
    assert " SNAKETRAIN_BIND=numa " in launching.launch(Compute(**compute, bind="numa"), in_slurm_job=False)
