"""The workflow on a real cluster of several nodes, without faults."""

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from pipeline.workspace import read_configuration, write_configuration

from slurm.lab import REPOSITORY, RUN, STEPS, TRAINING, Workflow, attempts, configured, events, job_of, make, set_pace, slurm, steps, until


def test_each_stage_is_a_job_and_two_nodes_train_together(undisturbed):
    logs = {path.parent.parent.name: path for path in undisturbed.glob("logs/slurm/*/*/*.log")}
    assert sorted(logs) == [
        "rule_evaluate_model",
        "rule_prepare_data",
        "rule_train_model",
    ]  # all others are light enough for the login node
    assert len({path.stem for path in logs.values()}) == 3  # the jobs' numbers
    assert "2 processes on each of train1, train2" in logs["rule_train_model"].read_text()
    assert re.search(r"1 processes on each of train\d\n", logs["rule_evaluate_model"].read_text())
    assert [event["processes"] for event in events(undisturbed, "attempt")] == [4]
    assert steps(undisturbed) == list(range(1, STEPS + 1))
    ranks = sorted(path.name for path in (undisturbed / TRAINING / "logs").glob("*.log"))
    assert ranks == ["rank-0.log", "rank-2.log"]  # of the first rank of each node
    results = json.loads((undisturbed / RUN / "evaluation/test_results.json").read_text())
    assert results["examples"] == 36 and 0 <= results["metrics"]["accuracy"] <= 1
    assert (undisturbed / "results/comparison/runs.csv").is_file()


def test_processes_on_whole_nodes_see_their_gpus(undisturbed):
    """SLURM shows them to the job's script alone, unless each step asks for them."""
    (log,) = undisturbed.glob("logs/slurm/rule_train_model/*/*.log")
    assert re.findall(r"GPUs of this process: (\S+)", log.read_text()) == ["0,1"] * 4


def test_logs_contain_no_noise_about_connections(undisturbed):
    for log in undisturbed.glob("logs/slurm/rule_train_model/*/*.log"):
        assert "[c10d]" not in log.read_text()


def test_a_second_start_has_nothing_to_do(undisturbed):
    assert "Nothing to be done" in Workflow(undisturbed).finish()


def test_a_set_that_is_added_is_prepared_and_evaluated_in_jobs_of_its_own(undisturbed, tmp_path):
    folder = shutil.copytree(undisturbed, tmp_path / "workspace", symlinks=True)
    before = {path.stem for path in folder.glob("logs/slurm/*/*/*.log")}
    (folder / "more.csv").write_text("".join((folder / "sentences.csv").read_text().splitlines(keepends=True)[:30]))
    config = read_configuration(folder)
    write_configuration(folder, config | {"evaluation_sets": {"more": {"path": "more.csv", "checkpoints": "all"}}})
    Workflow(folder).finish()
    logs = {path.parent.parent.name: path.parent.name for path in folder.glob("logs/slurm/*/*/*.log") if path.stem not in before}
    assert sorted(logs) == ["rule_evaluate_set", "rule_prepare_set"] and logs["rule_evaluate_set"] == "patient_more"
    results = json.loads((folder / "results/runs/patient/sets/more/more_results.json").read_text())
    assert results["examples"] == 29
    assert len(json.loads((folder / "results/runs/patient/sets/more/checkpoints.json").read_text())["checkpoints"]) > 1


def test_evaluated_in_the_trainings_job_which_is_requeued_meanwhile(undisturbed, workspace):
    """The job starts again from the top: it resumes the training, then selects and evaluates."""
    workflow = Workflow(configured(workspace, compute={"evaluation": {"in_training_job": True}}))
    until(lambda: max(steps(workspace), default=0) > 12, "it trains", workflow=workflow)
    job = job_of(workspace)
    assert "TimeLimit=00:20:00" in slurm("scontrol", "show", "job", job), "the minutes of its parts are not added up"
    slurm("scontrol", "requeue", job)
    until(lambda: attempts(workspace) == 2, "it is started again", workflow=workflow)
    set_pace(workspace, 0)
    workflow.finish()
    assert [path.stem for path in workspace.glob("logs/slurm/**/*.log")] == [job]
    expected, found = (json.loads((folder / RUN / "evaluation/test_results.json").read_text()) for folder in (undisturbed, workspace))
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-5)
    assert "Nothing to be done" in Workflow(workspace).finish()


def test_six_runs_of_a_sweep_share_one_preparation_and_run_side_by_side_and_one_is_cancelled(cluster, tmp_path):
    folder = make(tmp_path, pace=1.0, nodes="1", processes=1, threads=1, sbatch="--gpus-per-node=1")
    config = read_configuration(folder)
    config |= {"runs": {}, "sweeps": {"rate": {"train.learning_rate": [1e-3, 1e-2], "train.seed": [0, 1, 2]}}}
    write_configuration(folder, config)
    workflow = Workflow(folder)

    def journals() -> list[str]:
        return [path.read_text() for path in folder.glob("results/runs/*/training/journal.jsonl")]

    until(lambda: sum('"event": "train"' in journal for journal in journals()) == 6, "all six train", workflow=workflow)
    assert not any('"event": "end"' in journal for journal in journals())
    cancelled = min(path.name for path in (folder / "results/runs").iterdir())
    command = [sys.executable, REPOSITORY / "workflow/scripts/tools/cluster.py", "cancel", cancelled]
    assert f"{cancelled}: saved at step" in subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    set_pace(folder, 0)
    until(lambda: workflow.process.poll() is not None, "snakemake ends")
    trained = [path.parts[-3] for path in folder.glob("results/runs/*/evaluation/manifest.json")]
    assert workflow.process.returncode == 1 and len(trained) == 5 and cancelled not in trained, "the others are not held up"
    Workflow(folder).finish()
    assert len(list(folder.glob("logs/slurm/rule_prepare_data/*/*.log"))) == 1
    assert len(list(folder.glob("results/data/*/manifest.json"))) == 1
    logs = list(folder.glob("logs/slurm/rule_train_model/*/*.log"))
    assert len({path.stem for path in logs}) == 7
    assert all(re.search(r"GPUs of this process: [01](?!,)", path.read_text()) for path in logs)
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        assert store.execute("select count(*) from tags where value like 'train:%'").fetchone() == (6,)
        assert store.execute("select count(*) from tags where value like 'prepare:%'").fetchone() == (1,)
