"""A node of a job that cannot run the training is named and left out before it fails a start."""

import sys
from pathlib import Path

import pytest

from slurm.lab import (
    TRAINING,
    Workflow,
    attempts,
    configured,
    events,
    finished,
    hidden,
    job_of,
    nodes_of,
    restarts,
    until,
    well_on_its_way,
)

PYTHON = Path(sys.executable).parent


def log_of(workspace: Path) -> str:
    (log,) = workspace.glob("logs/slurm/rule_train_model/*/*.log")
    return log.read_text()


def test_it_trains_on_the_nodes_that_are_fit(cluster, workspace):
    configured(workspace, compute={"nodes": "1-2"})
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json")
    try:
        with hidden(cluster, "train2", workspace.parent):
            well_on_its_way(workflow)
            finished(workflow)
    finally:
        workflow.end()
    assert f"train2 does not see the working folder {workspace}: is its file system mounted there?; it is left out" in log_of(workspace)
    assert [event["processes"] for event in events(workspace, "attempt")] == [1]


@pytest.mark.slow
def test_with_too_few_nodes_left_the_job_starts_again_without_those_that_are_unfit(cluster, workspace):
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json", "--retries", "0")
    try:
        with hidden(cluster, "train2", PYTHON):
            until(lambda: "will start without train2, which failed it" in workflow.printed(), "the node is left out", workflow=workflow)
            well_on_its_way(workflow)
            job = job_of(workspace)
            assert (restarts(job), attempts(workspace)) == (1, 1) and "train2" not in nodes_of(job)
            finished(workflow)
    finally:
        workflow.end()
    assert f"job {job}: train2 has no Python at {sys.executable}" in log_of(workspace)


def test_a_first_node_that_cannot_run_the_jobs_script_is_not_given_to_the_next_job(cluster, workspace):
    """It would fail each within a second, until no retry is left."""
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json", "--retries", "1")
    try:
        with hidden(cluster, "train1", PYTHON):
            well_on_its_way(workflow)
            assert "train1" not in nodes_of(job_of(workspace))
            finished(workflow)
    finally:
        workflow.end()
    assert f"could not start {sys.executable} on its node: " in workflow.printed()
    assert "jobs are submitted with --exclude=train1" in workflow.printed()
