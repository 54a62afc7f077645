"""A training continues, or stays ended, whatever happens to its job and to the snakemake that follows it. Each test continues the one before."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import limits
import pytest

from slurm.lab import (
    TRAINING,
    Workflow,
    assert_as_undisturbed,
    attempts,
    configured,
    events,
    job_of,
    jobs_tool,
    set_pace,
    slurm,
    steps,
    until,
    untrained,
    well_on_its_way,
)

STALL_SECONDS = 30


class Followed:
    """A training, and the snakemake that follows its job."""

    def __init__(self, folder):
        self.folder, self.workflow, self.starts = folder, None, 0

    def start(self, **compute) -> Workflow:
        words = f"{TRAINING}/manifest.json", "--retries", "9"
        self.workflow = Workflow(configured(self.folder, compute=compute), *words, python=sys.executable)  # signals are the subject
        return self.workflow

    def under_way(self) -> Workflow:
        """With a new start of the training, unless one runs."""
        if self.workflow is None or self.workflow.process.poll() is not None:
            step = max(steps(self.folder), default=0)
            self.start()
            self.starts += 1
            if step:
                until(lambda: max(steps(self.folder)) > step, "it trains on", workflow=self.workflow)
            else:
                well_on_its_way(self.workflow)
        assert attempts(self.folder) == self.starts
        return self.workflow

    def kill(self) -> None:
        os.kill(self.workflow.process.pid, signal.SIGKILL)
        self.workflow.process.wait()
        subprocess.run([*self.workflow.command, "--unlock"], cwd=self.folder, check=True, capture_output=True)

    def last_end(self) -> dict:
        return events(self.folder, "end")[-1]


@pytest.fixture(scope="module")
def followed(undisturbed, tmp_path_factory) -> Iterator[Followed]:
    """Its code differs from what Snakemake has recorded of an undisturbed training, which makes results stale, but not its weights."""
    folder = untrained(undisturbed, tmp_path_factory.mktemp("followed") / "workspace")
    with open(folder / "patient.py", "a") as code:
        code.write("\nCHANGED = True\n")
    followed = Followed(configured(folder, compute={"stall_seconds": limits.seconds(STALL_SECONDS)}))
    yield followed
    if followed.workflow:
        followed.workflow.end()
    slurm("scancel", "--quiet", "--user", str(os.getuid()))


def stands_still(folder: Path) -> bool:
    """SLURM suspends a job by SIGTSTP, and some seconds later by SIGSTOP."""
    before = len(steps(folder))
    time.sleep(limits.seconds(4))
    return len(steps(folder)) == before


def test_suspended_for_longer_than_a_stall(followed):
    """Which ends nothing: the processes did not live in this time."""
    workflow, job = followed.under_way(), job_of(followed.folder)
    slurm("scontrol", "suspend", job)
    until(lambda: stands_still(followed.folder), "it stands still", workflow=workflow)
    before = len(steps(followed.folder))
    time.sleep(1.2 * limits.seconds(STALL_SECONDS))
    assert len(steps(followed.folder)) == before
    slurm("scontrol", "resume", job)
    until(lambda: len(steps(followed.folder)) > before + 2, "it trains on", workflow=workflow)
    assert attempts(followed.folder) == 1


def test_a_new_snakemake_follows_the_job_of_one_that_was_killed(followed):
    followed.under_way()
    followed.kill()
    job = job_of(followed.folder)
    shown = jobs_tool(followed.folder, "status")
    assert f"patient  train_model  {job}" in shown and "RUNNING" in shown
    again = followed.start()
    until(lambda: f"continues as SLURM job {job}" in again.printed(), "it follows the job", workflow=again)
    assert attempts(followed.folder) == followed.starts


def test_ctrl_c_ends_the_job_which_saves(followed):
    workflow, job = followed.under_way(), job_of(followed.folder)
    workflow.signal(signal.SIGINT)
    until(lambda: not slurm("squeue", "--noheader", "--states=PENDING,RUNNING,COMPLETING"), "its job ends")
    until(lambda: workflow.process.poll() is not None, "snakemake ends", 10)
    assert f"Cancelled SLURM job {job} (train_model:patient). Waiting until they have saved and ended" in workflow.printed()
    assert followed.last_end()["status"] == "STOPPED"


@pytest.mark.slow
def test_a_snakemake_that_would_ask_for_other_resources_ends_the_job_and_resumes_in_another(followed):
    followed.under_way()
    first = job_of(followed.folder)
    followed.kill()
    again = followed.start(memory_mb=2100)
    followed.starts += 1
    until(lambda: attempts(followed.folder) == followed.starts, "it is started again", workflow=again)
    assert job_of(followed.folder) != first and followed.last_end()["status"] == "STOPPED"


def test_a_job_that_is_cancelled_stays_cancelled(followed):
    """It saves, and is not submitted again, whatever `retries` allows."""
    workflow = followed.under_way()
    slurm("scancel", job_of(followed.folder))
    until(lambda: workflow.process.poll() is not None, "snakemake ends")
    assert workflow.process.returncode == 1
    assert "It was cancelled and is not retried" in workflow.printed()
    assert followed.last_end()["status"] == "STOPPED" and attempts(followed.folder) == followed.starts
    assert "CANCELLED" in jobs_tool(followed.folder, "status")


def test_what_is_done_while_no_snakemake_runs_counts(followed, undisturbed):
    """Even if Snakemake's own record is of an earlier training, with other code."""
    followed.under_way()
    followed.kill()
    shutil.copytree(undisturbed / ".snakemake/metadata", followed.folder / ".snakemake/metadata", dirs_exist_ok=True)
    set_pace(followed.folder, 0)
    until(lambda: (followed.folder / TRAINING / "manifest.json").exists() and not slurm("squeue", "--noheader"), "its job is over")
    again = followed.start()
    assert f"was completed by SLURM job {job_of(followed.folder)} while no workflow ran" in again.finish()
    assert_as_undisturbed(followed.folder, undisturbed, followed.starts)
