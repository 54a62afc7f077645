"""A training that is submitted by hand, with the script that the workflow leaves and `snaketrain script` prints."""

import re
import subprocess
import sys

from slurm.lab import REPOSITORY, RUN, STEPS, TRAINING, Workflow, attempts, events, jobs_tool, set_pace, slurm, steps, until, weights


def test_a_training_that_is_submitted_by_hand_and_interrupted_is_the_one_of_the_workflow(undisturbed, workspace):
    command = [sys.executable, "-m", "snaketrain.cli", "script", "patient", "--snakefile", str(REPOSITORY / "Snakefile")]
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = (undisturbed / TRAINING / "job.sh").read_text()
    assert done.stdout.replace(str(workspace), "FOLDER") == written.replace(str(undisturbed), "FOLDER")
    (workspace / "by hand.sh").write_text(done.stdout)
    (logs,) = re.findall("mkdir -p (logs/slurm/[^ ]+)", done.stdout)
    (workspace / logs).mkdir(parents=True)

    def submit() -> str:
        return slurm("sbatch", "--parsable", str(workspace / "by hand.sh")).strip()

    job = submit()
    until(lambda: max(steps(workspace), default=0) > 12, "it trains")
    assert f"patient  train_model  {job}" in jobs_tool(workspace, "status")
    slurm("scancel", "--signal=USR1", job)  # as before its time limit
    until(lambda: not slurm("squeue", "--noheader"), "it has saved and ended")
    assert events(workspace, "end")[-1]["status"] == "STOPPED"
    assert "Submit this script again to resume." in (workspace / logs / f"{job}.log").read_text()
    set_pace(workspace, 0)
    submit()
    until(lambda: not slurm("squeue", "--noheader") and (workspace / TRAINING / "manifest.json").exists(), "it is trained to its end")

    assert attempts(workspace) == 2 and events(workspace, "attempt")[1]["resume_step"] >= 10
    assert [event["processes"] for event in events(workspace, "attempt")] == [2, 2]
    losses, expected = (
        {event["step"]: event["metrics"]["loss"] for event in events(folder, "train")} for folder in (workspace, undisturbed)
    )
    assert losses == expected and len(losses) == STEPS
    found, expected = weights(workspace), weights(undisturbed)
    assert found.keys() == expected.keys() and all((found[name] == expected[name]).all() for name in found)
    planned = Workflow(workspace, "--dry-run", f"{RUN}/selection/manifest.json").finish()
    assert "select_checkpoint" in planned and "train_model" not in planned
