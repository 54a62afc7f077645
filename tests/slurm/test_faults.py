"""Whatever happens to a training on the cluster, it resumes by itself from its last checkpoint, and ends with the same weights."""

import re

import limits
import pytest
from pipeline.lateness import seconds_behind

from slurm.disturbed import SAVE_BEFORE_LIMIT_SECONDS, started_again
from slurm.lab import TRAINING, assert_as_undisturbed, attempts, events, finished, job_of, restarts, set_pace, slurm, until


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
    assert starts == 6
    assert_as_undisturbed(training.folder, undisturbed, starts)
