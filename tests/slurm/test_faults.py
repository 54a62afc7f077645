"""Whatever happens to a training on the cluster, it goes on by itself from its last checkpoint, to the same weights."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from pipeline.workspace import snakemake

from slurm.lab import (
    LONG_SECONDS,
    STEPS,
    TRAINING,
    Workflow,
    attempts,
    configured,
    events,
    job_of,
    nodes_of,
    set_pace,
    slurm,
    steps,
    until,
    weights,
)


@pytest.fixture
def training(workspace) -> Workflow:
    """A workflow whose training is well on its way, past its first checkpoint."""
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json")
    until(lambda: max(steps(workspace), default=0) > 12, "it trains", workflow=workflow)
    set_pace(workspace, 1.5)  # it must not come to its end before it is disturbed
    yield workflow
    workflow.end()


def goes_on(workflow: Workflow, starts: int = 2) -> None:
    """Started again by itself; from here on without delay."""
    until(lambda: attempts(workflow.folder) >= starts, "it is started again", workflow=workflow)
    set_pace(workflow.folder, 0)
    workflow.finish()


def assert_as_undisturbed(folder: Path, undisturbed: Path, rel: float = 0.0, starts: int = 2) -> None:
    found, expected = weights(folder), weights(undisturbed)
    for name, values in expected.items():
        assert abs(found[name] - values).max() <= rel * abs(values).max(), name
    assert attempts(folder) == starts
    assert all(event["resume_step"] >= 10 for event in events(folder, "attempt")[1:])
    assert set(steps(folder)) == set(range(1, STEPS + 1))
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        runs = store.execute("select run_uuid, status from runs join tags using (run_uuid) where tags.value like 'train:%'").fetchall()
        assert [status for _, status in runs] == ["FINISHED"]
        counted = store.execute("select step, count(*) from metrics where key = 'train/loss' group by step order by step").fetchall()
    assert counted == [(step, 1) for step in range(1, STEPS + 1)]


def test_requeued(training, undisturbed):
    job = job_of(training.folder)
    slurm("scontrol", "requeue", job)
    goes_on(training)
    assert_as_undisturbed(training.folder, undisturbed)
    assert job_of(training.folder) == job


def test_preempted(training, undisturbed):
    job = job_of(training.folder)
    urgent = slurm("sbatch", "--parsable", "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 5").strip()
    until(lambda: "COMPLETED" in slurm("squeue", "--job", urgent, "--states=all", "--format=%T"), "the urgent job is done")
    goes_on(training)
    assert_as_undisturbed(training.folder, undisturbed)
    assert job_of(training.folder) == job


@pytest.mark.parametrize("which", [0, 1], ids=["first", "second"])
def test_node_crashes(cluster, training, undisturbed, which):
    job, node = job_of(training.folder), nodes_of(job_of(training.folder))[which]
    cluster.act("crash", node)
    try:
        goes_on(training)
    finally:
        cluster.act("start-node", node)
    assert_as_undisturbed(training.folder, undisturbed)
    assert f"SLURM job {job} (train_model patient) was queued again, since {node} died" in training.printed()
    assert job_of(training.folder) == job


@pytest.mark.parametrize("which", [0, 1], ids=["first", "second"])
def test_node_is_cut_off(cluster, training, undisturbed, which):
    """Its processes live on, and must neither write any more, nor harm the others when it is back."""
    job, node = job_of(training.folder), nodes_of(job_of(training.folder))[which]
    cluster.act("cut", node)
    try:
        until(lambda: attempts(training.folder) >= 2, "it is started again elsewhere", workflow=training)
    finally:
        cluster.act("heal", node)
    until(lambda: max(steps(training.folder)) > 20, "it trains on", workflow=training)
    goes_on(training)
    assert_as_undisturbed(training.folder, undisturbed)
    assert job_of(training.folder) == job


def test_time_limit(undisturbed, workspace):
    """Shorter than the training by far: it saves in time, and no attempt counts as a failure."""
    minutes = 1 if seconds_to_start(undisturbed) < 15 else 2 + seconds_to_start(undisturbed) // 60
    configured(workspace, compute={"minutes": minutes, "save_before_limit_seconds": 10})
    set_pace(workspace, 60 * minutes / STEPS)
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json")
    until(lambda: attempts(workspace) >= 2, "its first time is over", minutes * 60 + LONG_SECONDS, workflow)
    goes_on(workflow, starts=3)
    assert_as_undisturbed(workspace, undisturbed, starts=3)
    assert [event["signals"] for event in events(workspace, "end")] == [["SIGUSR1"], ["SIGUSR1"], []]
    assert len(list(workspace.glob("logs/slurm/rule_train_model/*/*.log"))) == 1
    assert "its time ran out; saved; queued again" in next(workspace.glob("logs/slurm/rule_train_model/*/*.log")).read_text()


def seconds_to_start(folder: Path) -> int:
    """From the start of a training's job to its first step."""
    log = next(folder.glob("logs/slurm/rule_train_model/*/*.log")).read_text()
    started = datetime.fromisoformat(re.search(r"Date: (\S+ \S+)", log)[1]).timestamp()
    return int(events(folder, "attempt")[0]["time"] - started)


def test_goes_on_with_fewer_nodes(cluster, workspace, tmp_path):
    """The cluster has no more than two nodes, then one. Other numbers of processes add up in another order."""
    configured(workspace, compute={"nodes": "1-2"}, model={"arguments": {"drop": 0.0}})
    alone = configured(Path(shutil.copytree(workspace, tmp_path / "alone")), compute={"processes": 1})
    snakemake(set_pace(alone, 0), f"{TRAINING}/manifest.json")
    slurm("scontrol", "update", "nodename=train[3-4]", "state=drain", "reason=test")
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json")
    try:
        until(lambda: max(steps(workspace), default=0) > 12, "it trains", workflow=workflow)
        set_pace(workspace, 1.5)
        cluster.act("crash", "train2")
        goes_on(workflow)
    finally:
        cluster.act("start-node", "train2")
        slurm("scontrol", "update", "nodename=train[3-4]", "state=resume")
        workflow.end()
    assert [event["processes"] for event in events(workspace, "attempt")] == [4, 2]
    assert_as_undisturbed(workspace, alone, rel=1e-6)


def test_step_is_killed(training, undisturbed):
    slurm("scancel", "--signal=KILL", f"{job_of(training.folder)}.0")
    goes_on(training)
    assert_as_undisturbed(training.folder, undisturbed)


def test_job_is_cancelled(training, undisturbed):
    slurm("scancel", job_of(training.folder))
    goes_on(training)
    assert_as_undisturbed(training.folder, undisturbed)


def test_interrupted(training, undisturbed):
    """Ctrl-C ends the jobs, and they save."""
    training.signal(signal.SIGINT)
    until(lambda: training.process.poll() is not None, "snakemake ends")
    until(lambda: events(training.folder, "end"), "the training has saved")
    assert events(training.folder, "end")[0]["status"] == "STOPPED"
    again = Workflow(training.folder, f"{TRAINING}/manifest.json")
    goes_on(again)
    assert_as_undisturbed(training.folder, undisturbed)


def test_snakemake_is_killed(training, undisturbed):
    """Its job trains on; a new snakemake knows nothing of it."""
    first = job_of(training.folder)
    os.kill(training.process.pid, signal.SIGKILL)
    training.process.wait()
    subprocess.run([*training.command, "--unlock"], cwd=training.folder, check=True, capture_output=True)
    again = Workflow(training.folder, f"{TRAINING}/manifest.json")
    goes_on(again)
    assert job_of(training.folder) != first
    assert_as_undisturbed(training.folder, undisturbed)
