"""slurmctld goes away: while a job is submitted, while it trains, and while it ends. Or SLURM answers, and what it says is not so."""

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
    slurm,
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


SBATCH = """#!/bin/bash
refuse() { echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; echo "$1: Job violates accounting/QOS policy (job submit limit)" >&2; exit 1; }
if [[ "$*" == *--test-only* ]]; then
    mkdir HERE/full-at-the-start 2> /dev/null && refuse "allocation failure"
elif mkdir HERE/full 2> /dev/null; then refuse "sbatch: error: Batch job submission failed"
elif mkdir HERE/silent 2> /dev/null; then exec REAL "$@" > /dev/null
fi
exec REAL "$@"
"""
SQUEUE = """#!/bin/bash
[ -e HERE/empty ] && echo >> HERE/empty && exit 0
[ -e HERE/garbled ] && echo >> HERE/garbled && echo "<html>502 Bad Gateway</html>" && exit 0
exec REAL "$@"
"""
ANSWERS = 5  # of each kind: a job counts as lost after two


def answers(tmp_path: Path, monkeypatch, **programs: str) -> Path:
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        program = tmp_path / "bin" / name
        program.write_text(text.replace("HERE", str(tmp_path)).replace("REAL", shutil.which(name)))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return tmp_path


def test_answers_that_are_not_so(undisturbed, workspace, tmp_path, monkeypatch):
    """A limit that is full, a job that is taken without a word, and squeue that lists no job, or answers something else."""
    before = slurm("sbatch", "--parsable", "--hold", "--wrap", "true").strip()  # fills the limit
    here = answers(tmp_path, monkeypatch, sbatch=SBATCH, squeue=SQUEUE)
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json", "--retries", "0")
    try:
        well_on_its_way(workflow)
        for kind in ("empty", "garbled"):
            (here / kind).touch()
            until(lambda kind=kind: len((here / kind).read_text()) > ANSWERS, f"squeue has given {kind} answers", workflow=workflow)
            (here / kind).unlink()
        finished(workflow)
    finally:
        workflow.end()
        slurm("scancel", before)
    assert (here / "full-at-the-start").exists()
    assert "is not submitted yet: a limit on submitted jobs is reached" in workflow.printed()
    assert "is not submitted yet: sbatch did not say which number it has" in workflow.printed()
    assert "no longer knows" not in workflow.printed()
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
