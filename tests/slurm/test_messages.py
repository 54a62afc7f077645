"""What a user sees when the cluster refuses a job or lets it wait: one line with the reason and what to do."""

import re
import subprocess
import sys

import pytest

from slurm.lab import REPOSITORY, TRAINING, Workflow, attempts, configured, events, job_of, restarts, slurm, until


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (
            {"partition": "nowhere"},
            r"train_model patient: SLURM would refuse it: .*Invalid partition name specified\. Remedy: set compute\.partition",
        ),
        ({"memory_mb": 9_000_000}, r"train_model patient: SLURM would refuse it: .*not available\. Remedy: .*lower compute\.memory_mb"),
        ({"nodes": "9"}, r"train_model patient: SLURM would refuse it: .*not available\. Remedy: .*compute\.nodes"),
        ({"gpus": 8, "device": "auto"}, r"train_model patient: SLURM would refuse it: .*not available\. Remedy: .*compute\.gpus"),
        ({"sbatch": "--array=1-2"}, r"compute\.sbatch: `--array` cannot be used, since each task of an array would be the whole stage"),
        ({"sbatch": "--job-name=mine"}, r"compute\.sbatch: `--job-name` cannot be used, since by it the workflow knows its jobs again"),
        (
            {"sbatch": "--constraint=a100"},
            r"train_model patient: SLURM would refuse it: .*Invalid feature.*Remedy: correct compute\.sbatch",
        ),
    ],
    ids=lambda value: "=".join(map(str, next(iter(value.items())))) if isinstance(value, dict) else "",
)
def test_what_cannot_run_there_is_reported_before_any_job(workspace, compute, expected):
    workflow = Workflow(configured(workspace, compute=compute), f"{TRAINING}/manifest.json")
    until(lambda: workflow.process.poll() is not None, "snakemake ends")
    assert workflow.process.returncode == 1
    assert re.search(expected, workflow.printed())
    assert "has been submitted" not in workflow.printed() and "Traceback" not in workflow.printed()


def test_the_plugin_alone_is_refused(workspace):
    """A profile from before ours was a plug-in of its own."""
    workflow = Workflow(workspace, f"{TRAINING}/manifest.json", "--executor", "slurm")
    until(lambda: workflow.process.poll() is not None, "snakemake ends")
    assert workflow.process.returncode == 1 and "Set `executor: slurm-steady` in the profile" in workflow.printed()
    assert "has been submitted" not in workflow.printed()


def test_why_a_job_waits(workspace):
    """Longer than the partition allows: sbatch takes it, and it would wait for ever."""
    workflow = Workflow(configured(workspace, compute={"minutes": 500}), f"{TRAINING}/manifest.json")
    told = r"SLURM job (\d+) \(train_model patient\) has been waiting for \d+ minutes \(PartitionTimeLimit\): .* lower compute\.minutes.* Log: (\S+)"
    found = until(lambda: re.search(told, workflow.printed()), "it is told why the job waits", workflow=workflow)
    assert found[2].endswith(f"logs/slurm/rule_train_model/patient/{found[1]}.log")
    slurm("scancel", found[1])
    until(lambda: f"SLURM job {found[1]} (train_model patient) ended as CANCELLED" in workflow.printed(), "its end is told")
    workflow.end()


def test_a_limit_that_leaves_no_time_for_a_step_ends_the_training(workspace):
    """Requeued, it would do the same for ever."""
    with open(workspace / "patient.py", "a") as task:
        task.write("\n\ndef slowly(start):\n    def started(self):\n        time.sleep(90)\n        start(self)\n\n    return started\n")
        task.write("\n\nPatient.on_worker_start = slowly(Patient.on_worker_start)\n")
    workflow = Workflow(configured(workspace), f"{TRAINING}/manifest.json", "--retries", "0")
    until(lambda: events(workspace, "attempt"), "it starts", workflow=workflow)
    job = job_of(workspace)
    slurm("scontrol", "update", f"jobid={job}", "timelimit=3")
    until(lambda: workflow.process.poll() is not None, "snakemake ends")
    assert workflow.process.returncode == 1 and restarts(job) == 0 and attempts(workspace) == 1
    (log,) = workspace.glob(f"logs/slurm/rule_train_model/*/{job}.log")
    assert f"job {job}: its time ran out before it took a step" in log.read_text()


def test_several_nodes_without_slurm_are_refused_before_any_job(workspace):
    command = [sys.executable, "-m", "snakemake", "--snakefile", REPOSITORY / "Snakefile", "--directory", workspace, "--cores", "2"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=workspace)
    assert done.returncode == 1
    assert "compute.nodes: is 2, but more than one node needs SLURM. Use `--profile profiles/slurm`" in done.stderr
    assert "rule train_model" not in done.stderr and "Traceback" not in done.stderr


def test_gpus_that_torch_does_not_find_end_the_training_at_once(workspace):
    """SLURM allocates a device that is not a GPU; the CPU must not replace it."""
    workflow = Workflow(
        configured(workspace, compute={"gpus": 2, "processes": 2, "device": "auto"}), f"{TRAINING}/manifest.json", "--retries", "0"
    )
    until(lambda: workflow.process.poll() is not None, "snakemake ends")
    (log,) = workspace.glob("logs/slurm/rule_train_model/*/*.log")
    found = re.findall(r"compute.device: rank (\d) on (\S+) finds no GPU \(CUDA_VISIBLE_DEVICES is '0,1'\)", log.read_text())
    assert {rank for rank, _ in found} <= set("0123") and {node for _, node in found} <= {"train1", "train2", "train3", "train4"} and found
    assert not events(workspace, "train") and workflow.process.returncode == 1
    assert "resuming from step" not in log.read_text()
