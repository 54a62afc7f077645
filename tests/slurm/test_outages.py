"""slurmctld goes away: while a job is submitted, while it trains, and while it ends."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from slurm.lab import (
    TRAINING,
    Workflow,
    assert_as_undisturbed,
    attempts,
    configured,
    finished,
    job_of,
    rank_process,
    set_pace,
    steps,
    until,
    well_on_its_way,
)

OUTAGE_SECONDS = 60
HALF = OUTAGE_SECONDS / 2  # more than a submission of the plugin takes to use up its retries


def sbatch_that_acts(cluster, tmp_path, monkeypatch, condition: str, *actions: str) -> Path:
    """On the first submission for which the condition holds; the rest is left to the real sbatch. The folder is there once it has acted."""
    script = Path(__file__).with_name("cluster.sh")
    program = tmp_path / "bin/sbatch"
    program.parent.mkdir()
    acts = "; ".join(f"{script} {action} {cluster.folder}" for action in actions)
    program.write_text(f'#!/bin/bash\nif {condition} && mkdir {tmp_path}/met; then {acts}; fi\nexec {shutil.which("sbatch")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return tmp_path / "met"


@pytest.fixture
def sbatch_that_meets_an_outage(cluster, tmp_path, monkeypatch) -> Path:
    """Stops slurmctld at the first submission."""
    return sbatch_that_acts(cluster, tmp_path, monkeypatch, '[[ "$*" != *--test-only* ]]', "stop-controller")


@pytest.fixture
def preflight_that_meets_a_start(cluster, tmp_path, monkeypatch) -> Path:
    """Of a slurmctld, which takes some seconds to learn of its nodes: it is asked at once."""
    return sbatch_that_acts(cluster, tmp_path, monkeypatch, '[[ "$*" == *--test-only* ]]', "stop-controller", "start-controller")


def test_the_workflow_survives_outages(cluster, undisturbed, workspace, sbatch_that_meets_an_outage):
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json", "--retries", "0")
    try:
        until(sbatch_that_meets_an_outage.exists, "the job is submitted", workflow=workflow)
        until(lambda: "is not submitted yet" in workflow.printed(), "the submission waits", workflow=workflow)
        time.sleep(HALF)
        cluster.act("start-controller")
        until(lambda: len(steps(workspace)) > 12, "it trains", workflow=workflow)

        cluster.act("stop-controller")
        step = max(steps(workspace))
        time.sleep(OUTAGE_SECONDS)
        assert max(steps(workspace)) > step, "a training needs no slurmctld"
        cluster.act("start-controller")
        until(lambda: workflow.printed().count("SLURM answers again") == 1, "its state is known again", workflow=workflow)

        cluster.act("stop-controller")
        set_pace(workspace, 0)
        until((workspace / TRAINING / "manifest.json").exists, "the training is over", workflow=workflow)
        time.sleep(HALF)  # its job ends, and slurmctld does not hear of it
        assert workflow.process.poll() is None
        cluster.act("start-controller")
        workflow.finish()
    finally:
        workflow.end()
    assert attempts(workspace) == 1
    assert_as_undisturbed(workspace, undisturbed, starts=1)


def test_a_controller_that_has_just_started_refuses_nothing(cluster, workspace, preflight_that_meets_a_start):
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json")
    try:
        until(lambda: steps(workspace), "it trains", workflow=workflow)
    finally:
        workflow.end()
    assert preflight_that_meets_a_start.exists()
    assert workflow.printed().count("waits until its nodes have registered") == 1


def test_what_a_controller_refuses_is_no_restart(cluster, workspace, undisturbed):
    """A process is lost during an outage; before slurmctld knows its nodes again, it may refuse new steps at once."""
    configured(workspace, compute={"restarts": 1})
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json", "--retries", "0")
    try:
        well_on_its_way(workflow)
        job = job_of(workspace)
        cluster.act("stop-controller")
        os.kill(rank_process(job, 1), signal.SIGKILL)
        (log,) = workspace.glob("logs/slurm/rule_train_model/*/*.log")
        until(lambda: f"job {job}: SLURM does not answer; going on when it does" in log.read_text(), "it waits", workflow=workflow)
        cluster.act("start-controller")
        until(lambda: attempts(workspace) > 1, "it is started again", workflow=workflow)
        finished(workflow)
    finally:
        workflow.end()
    assert_as_undisturbed(workspace, undisturbed, starts=2)
