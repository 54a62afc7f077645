"""A SLURM cluster for these tests, and an undisturbed workflow to compare with."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm import lab
from slurm.disturbed import SAVE_BEFORE_LIMIT_SECONDS

PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge", "ip": "iproute2"}
SIZE = {"NODES": "4", "CPUS": "4"}
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")


def why_not() -> str | None:
    if os.geteuid():
        return "a cluster of one's own needs root, for network namespaces and the nodes' names"
    if missing := [package for program, package in PACKAGES.items() if not shutil.which(program)]:
        return f"a cluster of one's own needs, on Debian or Ubuntu: apt-get install --no-install-recommends {' '.join(missing)}"
    trial = "ip link add br-snaketrial type bridge && ip netns add snaketrial && ip netns exec snaketrial true"
    tried = subprocess.run(["sh", "-c", trial], capture_output=True, text=True)
    subprocess.run(["sh", "-c", "ip link del br-snaketrial; ip netns del snaketrial"], capture_output=True)
    if tried.returncode:
        return f"a cluster of one's own needs the right to make networks, which a container may lack: {tried.stderr.strip()}"
    return None


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[lab.Cluster]:
    if reason := why_not():
        pytest.skip(reason)
    # a workspace of one cluster is copied to others: no job there may have the number of one that it knows
    first = str(1 + 1000 * int(WORKER.removeprefix("gw")))
    with lab.started(tmp_path_factory.mktemp("cluster"), **SIZE, FIRST_JOB=first) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def undisturbed(cluster, made_once) -> Path:
    """The whole workflow on two whole nodes, run on one of the clusters."""
    return made_once("undisturbed", lambda folder: lab.Workflow(lab.make(folder, sbatch="--exclusive")).finish())


@pytest.fixture
def workspace(undisturbed, tmp_path) -> Path:
    """The same with its data prepared and nothing trained yet; a step takes long enough to be disturbed."""
    folder = lab.untrained(undisturbed, tmp_path / "workspace")
    yield folder
    subprocess.run(["scancel", "--quiet", "--user", str(os.getuid())], check=False)
    lab.until(lambda: not lab.slurm("squeue", "--noheader"), "all jobs have ended")


@pytest.fixture(scope="module")
def training(cluster, undisturbed, tmp_path_factory) -> Iterator[lab.Workflow]:
    """One workflow whose training is past its first checkpoint. Each test of a file disturbs it; the last one checks its result."""
    folder = lab.untrained(undisturbed, tmp_path_factory.mktemp("training") / "workspace")
    lab.configured(folder, compute={"save_before_limit_seconds": SAVE_BEFORE_LIMIT_SECONDS})
    workflow = lab.Workflow(folder, f"{lab.TRAINING}/manifest.json", "--retries", "9")
    lab.well_on_its_way(workflow)
    yield workflow
    workflow.end()
    lab.slurm("scancel", "--quiet", "--user", str(os.getuid()))
