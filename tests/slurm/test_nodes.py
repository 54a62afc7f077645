"""A training continues on the nodes that are left, or on a spare one."""

import shutil
from pathlib import Path

import pytest
from pipeline.workspace import snakemake

from slurm.lab import (
    TRAINING,
    Workflow,
    assert_as_undisturbed,
    attempts,
    configured,
    events,
    finished,
    job_of,
    lost,
    nodes_of,
    restarts,
    set_pace,
    slurm,
    until,
    well_on_its_way,
)


@pytest.mark.slow
def test_it_continues_with_fewer_nodes(cluster, workspace, tmp_path):
    """The cluster has only two nodes, with two processes each, then one. With other numbers of processes, sums are computed in another order."""
    configured(workspace, compute={"nodes": "1-2", "processes": 2}, model={"arguments": {"drop": 0.0}})
    alone = configured(Path(shutil.copytree(workspace, tmp_path / "alone")), compute={"processes": 1})
    slurm("scontrol", "update", "nodename=train[3-4]", "state=drain", "reason=test")
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json")
    try:
        well_on_its_way(workflow)
        with lost(cluster, "crash", "train2"):
            snakemake(set_pace(alone, 0), f"{TRAINING}/manifest.json")  # until SLURM notices
            until(lambda: attempts(workspace) > 1, "it is started again", workflow=workflow)
            finished(workflow)
    finally:
        slurm("scontrol", "update", "nodename=train[3-4]", "state=resume")
        workflow.end()
    assert [event["processes"] for event in events(workspace, "attempt")] == [4, 2]
    ranks = sorted(path.name for path in (workspace / TRAINING / "logs").glob("*.log"))
    assert ranks == ["rank-0.log", "rank-2.log"], "of the first rank of each node"
    assert_as_undisturbed(workspace, alone, starts=2, rel=1e-6)


def test_a_spare_node_steps_in_for_one_that_crashes(cluster, workspace, undisturbed):
    """Long before SLURM notices the dead node, and without waiting in the queue again."""
    configured(workspace, compute={"nodes": "2+1"})
    cluster.act("node-timeout", "300")
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json")
    try:
        well_on_its_way(workflow)
        job, (_, second, spare) = job_of(workspace), nodes_of(job_of(workspace))
        with lost(cluster, "crash", second):
            until(lambda: attempts(workspace) > 1, "it is restarted", workflow=workflow)
            assert (job_of(workspace), restarts(job)) == (job, 0)
            assert spare in nodes_of(job) and second not in nodes_of(job)
            finished(workflow)
    finally:
        cluster.act("node-timeout", "10")
        workflow.end()
    assert [event["processes"] for event in events(workspace, "attempt")] == [2, 2]
    assert_as_undisturbed(workspace, undisturbed, starts=2)
    (log,) = workspace.glob("logs/slurm/rule_train_model/*/*.log")
    assert f"job {job}: {second} does not answer; resuming from step" in log.read_text()
