"""Whatever happens to a training on the cluster, it resumes by itself from its last checkpoint, and ends with the same weights."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import limits
import pytest
from pipeline.lateness import seconds_behind

from slurm.lab import (
    TRAINING,
    Workflow,
    assert_as_undisturbed,
    attempts,
    configured,
    earlier_starts_live,
    events,
    finished,
    job_of,
    lost,
    nodes_of,
    restarts,
    set_pace,
    slurm,
    steps,
    until,
    untrained,
    well_on_its_way,
)

SAVE_BEFORE_LIMIT_SECONDS = 60


@pytest.fixture(scope="module")
def training(cluster, undisturbed, tmp_path_factory) -> Iterator[Workflow]:
    """One workflow whose training is past its first checkpoint. Each test disturbs it; the last one checks its result."""
    folder = untrained(undisturbed, tmp_path_factory.mktemp("training") / "workspace")
    configured(folder, compute={"save_before_limit_seconds": SAVE_BEFORE_LIMIT_SECONDS})
    workflow = Workflow(folder, f"{TRAINING}/manifest.json", "--retries", "9")
    well_on_its_way(workflow)
    yield workflow
    workflow.end()
    slurm("scancel", "--quiet", "--user", str(os.getuid()))


@contextmanager
def started_again(workflow: Workflow, most: int = 1) -> Iterator[None]:
    """What happens inside must make it start again by itself and take new steps, within `most` starts."""
    starts, step = attempts(workflow.folder), max(steps(workflow.folder))
    yield
    until(lambda: attempts(workflow.folder) > starts, "it is started again", workflow=workflow)
    until(lambda: max(steps(workflow.folder)) > step, "it trains on", workflow=workflow)
    assert attempts(workflow.folder) - starts <= most


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


@pytest.mark.parametrize("which", [1, 0], ids=["second", "first"])
def test_a_node_is_cut_off(cluster, training, which):
    """Its processes live on; they must neither write, nor harm the others when the node is back.

    When the first node is back, its old srun may cancel the step of the new start, which has the same number. Or SLURM may take the end of
    the old start for that of the new one, and Snakemake starts another job.
    """
    starts = attempts(training.folder)
    with started_again(training, most=1 if which else 2):
        with lost(cluster, "cut", nodes_of(job_of(training.folder))[which]):
            until(lambda: attempts(training.folder) > starts, "it is started again elsewhere", workflow=training)
        until(lambda: not earlier_starts_live(training.folder), "the processes of its earlier start have ended", workflow=training)
        step = max(steps(training.folder))
        until(lambda: max(steps(training.folder)) > step + 2, "it is not cancelled, or trains again", workflow=training)


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


def test_its_time_limit_is_reached(training):
    """It saves in time and continues under the same job number, which is not a failure."""
    job = job_of(training.folder)
    before, lived = restarts(job), seconds_lived(job)
    # after as long as it is given to save, and less than a minute more; SLURM signals up to a minute early
    minutes = (lived + SAVE_BEFORE_LIMIT_SECONDS) // 60 + 1
    set_pace(training.folder, limits.seconds(3))
    with started_again(training):
        slurm("scontrol", "update", f"jobid={job}", f"timelimit={minutes}")
        until(lambda: restarts(job) > before, "it is queued again", workflow=training)
        slurm("scontrol", "update", f"jobid={job}", "timelimit=60")
        set_pace(training.folder, limits.seconds(1))
    assert events(training.folder, "end")[-1]["signals"] == ["SIGUSR1"]
    assert job_of(training.folder) == job
    (log,) = training.folder.glob(f"logs/slurm/rule_train_model/*/{job}.log")
    told = [line for line in log.read_text().splitlines() if line.startswith(f"job {job}: ")]
    assert any(line.startswith(f"job {job}: its time ran out; saved; requeued") for line in told), told


def seconds_lived(job: str) -> int:
    """Since the last start of the job."""
    hours, minutes, seconds = map(int, re.search(r" RunTime=(\d+):(\d+):(\d+)", slurm("scontrol", "show", "job", job)).groups())
    return 3600 * hours + 60 * minutes + seconds


@pytest.mark.parametrize("signal", ["KILL", "TERM"])
def test_a_step_is_ended(training, signal):
    """Its processes are restarted within the job."""
    job = job_of(training.folder)
    before, steps = restarts(job), slurm("squeue", "--steps", "--noheader", "--jobs", job, "--format", "%i").split()
    (step,) = (step for step in steps if step.rpartition(".")[2].isdigit())
    with started_again(training):
        slurm("scancel", f"--signal={signal}", step)
    assert (job_of(training.folder), restarts(job)) == (job, before)


def test_after_all_faults_it_equals_an_undisturbed_training(training, undisturbed):
    finished(training)
    starts = attempts(training.folder)
    assert starts in (11, 12)  # one more where the first node was cut off
    assert_as_undisturbed(training.folder, undisturbed, starts)
