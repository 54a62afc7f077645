"""Whatever happens to a training on the cluster, it resumes by itself from its last checkpoint, and ends with the same weights."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

import limits
import pytest
from pipeline.lateness import seconds_behind
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
    untrained,
    weights,
)


@pytest.fixture(scope="module")
def training(cluster, undisturbed, tmp_path_factory) -> Iterator[Workflow]:
    """One workflow whose training is past its first checkpoint. Each test disturbs it; the last one checks its result."""
    folder = untrained(undisturbed, tmp_path_factory.mktemp("training") / "workspace")
    workflow = Workflow(folder, f"{TRAINING}/manifest.json", "--retries", "9")
    well_on_its_way(workflow)
    yield workflow
    workflow.end()
    slurm("scancel", "--quiet", "--user", str(os.getuid()))


def well_on_its_way(workflow: Workflow) -> None:
    until(lambda: max(steps(workflow.folder), default=0) > 12, "it trains", workflow=workflow)
    set_pace(workflow.folder, limits.seconds(1))  # it must not end before it is disturbed


@contextmanager
def started_again(workflow: Workflow, most: int = 1) -> Iterator[None]:
    """What happens inside must make it start again by itself and take new steps, within `most` starts."""
    starts, step = attempts(workflow.folder), max(steps(workflow.folder))
    yield
    until(lambda: attempts(workflow.folder) > starts, "it is started again", workflow=workflow)
    until(lambda: max(steps(workflow.folder)) > step, "it trains on", workflow=workflow)
    assert attempts(workflow.folder) - starts <= most


def finished(workflow: Workflow) -> None:
    """From here on without delay."""
    set_pace(workflow.folder, 0)
    workflow.finish()


def assert_as_undisturbed(folder: Path, undisturbed: Path, starts: int, rel: float = 0.0) -> None:
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


def test_curves_grow_in_mlflow_meanwhile(training):
    """Its node talks to no server: the follower beside snakemake reads the journal."""
    assert seconds_behind(training.folder, training.folder / TRAINING / "journal.jsonl") <= limits.seconds(5)


def test_requeued(training):
    job = job_of(training.folder)
    with started_again(training):
        slurm("scontrol", "requeue", job)
    assert job_of(training.folder) == job


def test_preempted(training):
    job = job_of(training.folder)
    with started_again(training):
        urgent = slurm(
            "sbatch", "--parsable", "--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 5"
        ).strip()
        until(lambda: "COMPLETED" in slurm("squeue", "--job", urgent, "--states=all", "--format=%T"), "the urgent job is done")
    assert job_of(training.folder) == job


@pytest.mark.parametrize("which", [0, 1], ids=["first", "second"])
def test_a_node_crashes(cluster, training, which):
    job, node = job_of(training.folder), nodes_of(job_of(training.folder))[which]
    with lost(cluster, "crash", node), started_again(training):
        pass  # elsewhere
    told = f"SLURM job {job} (train_model patient) was requeued" + (f" because {node} died" if which == 0 else "")
    assert told in training.printed()  # of another node than the first, the job itself may be quicker than SLURM
    assert job_of(training.folder) == job


@contextmanager
def lost(cluster, how: str, node: str) -> Iterator[None]:
    """Until what is in here is over."""
    cluster.act(how, node)
    try:
        yield
    finally:
        cluster.act({"crash": "start-node", "cut": "heal"}[how], node)


@pytest.mark.parametrize("which", [1, 0], ids=["second", "first"])
def test_a_node_is_cut_off(cluster, training, which):
    """Its processes live on; they must neither write, nor harm the others when the node is back.

    When the first node is back, SLURM may take the end of its old start for that of the new one, and Snakemake starts another job.
    """
    starts = attempts(training.folder)
    with started_again(training, most=1 if which else 2), lost(cluster, "cut", nodes_of(job_of(training.folder))[which]):
        until(lambda: attempts(training.folder) > starts, "it is started again elsewhere", workflow=training)


def test_a_node_that_fails_the_training_is_left_out(cluster, training):
    """SLURM would take it for good for five more minutes, and start the job there again."""
    job, node = job_of(training.folder), nodes_of(job_of(training.folder))[1]
    cluster.act("node-timeout", "300")
    try:
        with lost(cluster, "crash", node), started_again(training):
            told = f"SLURM job {job} (train_model patient) will start without {node}, which failed it"
            until(lambda: told in training.printed(), "the node is left out", workflow=training)
    finally:
        cluster.act("node-timeout", "10")
    assert job_of(training.folder) == job


def test_a_step_is_killed(training):
    """Its processes are restarted within the job."""
    job = job_of(training.folder)
    before, steps = restarts(job), slurm("squeue", "--steps", "--noheader", "--jobs", job, "--format", "%i").split()
    (step,) = (step for step in steps if step.rpartition(".")[2].isdigit())
    with started_again(training):
        slurm("scancel", "--signal=KILL", step)
    assert (job_of(training.folder), restarts(job)) == (job, before)


def restarts(job: str) -> str:
    return re.search(r"Restarts=(\d+)", slurm("scontrol", "show", "job", job))[1]


def test_after_all_faults_it_equals_an_undisturbed_training(training, undisturbed):
    finished(training)
    starts = attempts(training.folder)
    assert starts in (9, 10)  # one more where the first node was cut off
    assert_as_undisturbed(training.folder, undisturbed, starts)


def test_time_limit(undisturbed, workspace):
    """Much shorter than the training: it saves in time and continues under the same job number, which is not a failure."""
    minutes = 2 + seconds_to_start(undisturbed) // 30
    configured(workspace, compute={"minutes": minutes, "save_before_limit_seconds": 30})
    set_pace(workspace, 60 * minutes / STEPS)  # with its start it takes longer
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json")
    until(lambda: events(workspace, "end"), "its time is over", minutes * 60 + LONG_SECONDS, workflow)
    job = job_of(workspace)
    until(lambda: "Restarts=1" in slurm("scontrol", "show", "job", job), "it is queued again", workflow=workflow)
    slurm("scontrol", "update", f"jobid={job}", "timelimit=30")  # however slow this machine is
    finished(workflow)
    assert_as_undisturbed(workspace, undisturbed, starts=2)
    assert [event["signals"] for event in events(workspace, "end")] == [["SIGUSR1"], []]
    (log,) = workspace.glob("logs/slurm/rule_train_model/*/*.log")
    assert "its time ran out; saved; requeued" in log.read_text()


def seconds_to_start(folder: Path) -> int:
    """From the start of a training's job to its first step."""
    log = next(folder.glob("logs/slurm/rule_train_model/*/*.log")).read_text()
    started = datetime.fromisoformat(re.search(r"Date: (\S+ \S+)", log)[1]).timestamp()
    return int(events(folder, "attempt")[0]["time"] - started)


def test_it_continues_with_fewer_nodes(cluster, workspace, tmp_path):
    """The cluster has only two nodes, then one. With other numbers of processes, sums are computed in another order."""
    configured(workspace, compute={"nodes": "1-2"}, model={"arguments": {"drop": 0.0}})
    alone = configured(Path(shutil.copytree(workspace, tmp_path / "alone")), compute={"processes": 1})
    snakemake(set_pace(alone, 0), f"{TRAINING}/manifest.json")
    slurm("scontrol", "update", "nodename=train[3-4]", "state=drain", "reason=test")
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json")
    try:
        well_on_its_way(workflow)
        with lost(cluster, "crash", "train2"):
            until(lambda: attempts(workspace) > 1, "it is started again", workflow=workflow)
            finished(workflow)
    finally:
        slurm("scontrol", "update", "nodename=train[3-4]", "state=resume")
        workflow.end()
    assert [event["processes"] for event in events(workspace, "attempt")] == [4, 2]
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
            assert (job_of(workspace), restarts(job)) == (job, "0")
            assert spare in nodes_of(job) and second not in nodes_of(job)
            finished(workflow)
    finally:
        cluster.act("node-timeout", "10")
        workflow.end()
    assert [event["processes"] for event in events(workspace, "attempt")] == [4, 4]
    assert_as_undisturbed(workspace, undisturbed, starts=2)
    (log,) = workspace.glob("logs/slurm/rule_train_model/*/*.log")
    assert f"job {job}: {second} does not answer; resuming from step" in log.read_text()


@pytest.fixture
def workflow(workspace) -> Iterator[Workflow]:
    """One for a test alone."""
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json")
    well_on_its_way(workflow)
    yield workflow
    workflow.end()


def test_suspended_and_then_interrupted(workspace, undisturbed):
    """Suspension for longer than `compute.stall_seconds` ends nothing. Ctrl-C ends the job, which saves; snakemake says so and exits."""
    stall_seconds = limits.seconds(30)
    workflow = Workflow(configured(workspace, compute={"stall_seconds": stall_seconds}), f"{TRAINING}/manifest.json")
    try:
        well_on_its_way(workflow)
        job = job_of(workspace)
        slurm("scontrol", "suspend", job)
        time.sleep(1)
        before = len(steps(workspace))
        time.sleep(1.2 * stall_seconds)
        assert len(steps(workspace)) == before and attempts(workspace) == 1
        slurm("scontrol", "resume", job)
        until(lambda: len(steps(workspace)) > before + 2, "it trains on", workflow=workflow)
        workflow.signal(signal.SIGINT)
        until(lambda: not slurm("squeue", "--noheader", "--states=PENDING,RUNNING,COMPLETING"), "its job ends")
        until(lambda: workflow.process.poll() is not None, "snakemake ends", 10)
    finally:
        workflow.end()
    assert f"Cancelled SLURM job {job} (train_model:patient). Waiting until they have saved and ended" in workflow.printed()
    assert [event["status"] for event in events(workspace, "end")] == ["STOPPED"]
    finished(Workflow(workspace, f"{TRAINING}/manifest.json"))
    assert_as_undisturbed(workspace, undisturbed, starts=2)


def test_cancelled_stays_cancelled(workflow):
    """It saves, and is not submitted again, whatever `retries` allows."""
    slurm("scancel", job_of(workflow.folder))
    until(lambda: workflow.process.poll() is not None, "snakemake ends")
    assert workflow.process.returncode == 1
    assert "It was cancelled and is not retried" in workflow.printed()
    assert [event["status"] for event in events(workflow.folder, "end")] == ["STOPPED"]
    assert attempts(workflow.folder) == 1


def test_snakemake_is_killed(workflow, undisturbed):
    """Its job continues, and a new snakemake follows it. A snakemake that would request other resources ends it and resumes in another job."""
    first = job_of(workflow.folder)
    again = killed_and_started_again(workflow)
    until(lambda: f"goes on as SLURM job {first}" in again.printed(), "it follows the job", workflow=again)
    assert attempts(workflow.folder) == 1
    last = killed_and_started_again(again, memory_mb=2100)
    until(lambda: attempts(workflow.folder) > 1, "it is started again", workflow=last)
    finished(last)
    assert job_of(workflow.folder) != first
    assert_as_undisturbed(workflow.folder, undisturbed, starts=2)


def test_jobs_that_finish_while_no_snakemake_runs_count(workspace):
    """Results count even if Snakemake's own record is of other settings."""
    workflow = Workflow(configured(workspace, train={"learning_rate": 2e-3}), f"{TRAINING}/manifest.json")
    well_on_its_way(workflow)
    kill(workflow)
    set_pace(workspace, 0)
    until(lambda: (workspace / TRAINING / "manifest.json").exists() and not slurm("squeue", "--noheader"), "its job is over")
    again = Workflow(workspace, f"{TRAINING}/manifest.json")
    assert f"was completed by SLURM job {job_of(workspace)} while no workflow ran" in again.finish()
    assert attempts(workspace) == 1


def killed_and_started_again(workflow: Workflow, **compute) -> Workflow:
    kill(workflow)
    return Workflow(configured(workflow.folder, compute=compute), f"{TRAINING}/manifest.json")


def kill(workflow: Workflow) -> None:
    os.kill(workflow.process.pid, signal.SIGKILL)
    workflow.process.wait()
    subprocess.run([*workflow.command, "--unlock"], cwd=workflow.folder, check=True, capture_output=True)
