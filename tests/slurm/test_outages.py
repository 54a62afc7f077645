"""slurmctld goes away: while a job is submitted, while it trains, and while it ends."""

import shutil
import time
from pathlib import Path

import pytest

from slurm.lab import TRAINING, Workflow, assert_as_undisturbed, attempts, set_pace, steps, until

OUTAGE_SECONDS = 60
HALF = OUTAGE_SECONDS / 2  # more than a submission of the plugin takes to use up its retries


@pytest.fixture
def sbatch_that_meets_an_outage(cluster, tmp_path, monkeypatch) -> None:
    """Stops slurmctld at the first submission, and leaves the rest to the real sbatch."""
    script = Path(__file__).with_name("cluster.sh")
    program = tmp_path / "bin/sbatch"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/bash\n"
        f'if [[ "$*" != *--test-only* ]] && mkdir {tmp_path}/met; then {script} stop-controller {cluster.folder}; fi\n'
        f'exec {shutil.which("sbatch")} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return tmp_path / "met"


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
