"""The workflow on a real cluster of several nodes, without faults."""

import json
import re
import shutil
import sqlite3
from contextlib import closing

import pytest
from pipeline.workspace import read_configuration, write_configuration

from slurm.lab import RUN, STEPS, Workflow, events, jobs_tool, make, set_pace, slurm, steps, until
from snaketrain.runtime.journal import read_events


def test_each_stage_is_a_job_and_two_nodes_train_together(undisturbed):
    logs = {path.parent.parent.name: path for path in undisturbed.glob("logs/slurm/*/*/*.log")}
    assert sorted(logs) == [
        "rule_evaluate_model",
        "rule_prepare_data",
        "rule_train_model",
    ]  # all others are light enough for the login node
    assert len({path.stem for path in logs.values()}) == 3  # the jobs' numbers
    assert "1 process on each of train1, train2" in logs["rule_train_model"].read_text()
    assert re.search(r"1 process on each of train\d\n", logs["rule_evaluate_model"].read_text())
    assert [event["processes"] for event in events(undisturbed, "attempt")] == [2]
    assert steps(undisturbed) == list(range(1, STEPS + 1))
    results = json.loads((undisturbed / RUN / "evaluation/test_results.json").read_text())
    assert results["examples"] == 36 and 0 <= results["metrics"]["accuracy"] <= 1
    assert (undisturbed / "results/comparison/runs.csv").is_file()


def test_processes_on_whole_nodes_see_their_gpus(undisturbed):
    """SLURM shows them to the job's script alone, unless each step asks for them."""
    (log,) = undisturbed.glob("logs/slurm/rule_train_model/*/*.log")
    assert re.findall(r"GPUs of this process: (\S+)", log.read_text()) == ["0,1"] * 2


def test_logs_contain_no_noise_about_connections(undisturbed):
    for log in undisturbed.glob("logs/slurm/rule_train_model/*/*.log"):
        assert "[c10d]" not in log.read_text()


def test_a_second_start_has_nothing_to_do(undisturbed, tmp_path):
    folder = shutil.copytree(undisturbed, tmp_path / "workspace", symlinks=True)
    assert "Nothing to be done" in Workflow(folder).finish()


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


@pytest.mark.slow
def test_six_runs_of_a_sweep_share_one_preparation_and_run_side_by_side_while_one_is_cancelled_and_one_requeued(cluster, tmp_path):
    """Each is selected and evaluated in its training's job. One that is requeued starts again from the top, and resumes its training."""
    inside = {"in_training_job": True}
    folder = make(tmp_path, pace=1.0, nodes="1", threads=1, sbatch="--gpus-per-node=1", evaluation=inside)
    config = read_configuration(folder)
    config |= {"runs": {}, "sweeps": {"rate": {"train.learning_rate": [1e-3, 1e-2], "train.seed": [0, 1, 2]}}}
    write_configuration(folder, config)
    workflow = Workflow(folder)

    def trained() -> dict[str, list[dict]]:
        journals = folder.glob("results/runs/*/training/journal.jsonl")
        return {path.parts[-3]: read_events(path)[0] for path in journals}

    def has(run: str, kind: str, times: int = 1) -> bool:
        return sum(event["event"] == kind for event in trained()[run]) >= times

    until(lambda: sum(has(run, "train") for run in trained()) == 6, "all six train", workflow=workflow)
    assert not any(has(run, "end") for run in trained())
    cancelled, requeued, *_ = sorted(trained())
    assert f"{cancelled}: saved at step" in jobs_tool(folder, "cancel", cancelled)
    job = trained()[requeued][0]["job"]
    assert "TimeLimit=00:20:00" in slurm("scontrol", "show", "job", job), "the minutes of its parts are not added up"
    slurm("scontrol", "requeue", job)
    until(lambda: has(requeued, "attempt", 2), "it is started again", workflow=workflow)
    set_pace(folder, 0)
    until(lambda: workflow.process.poll() is not None, "snakemake ends")
    done = [path.parts[-3] for path in folder.glob("results/runs/*/evaluation/manifest.json")]
    assert workflow.process.returncode == 1 and len(done) == 5 and cancelled not in done, "the others are not held up"
    shown = dict(line.split(maxsplit=1) for line in jobs_tool(folder, "status").splitlines())
    assert shown[requeued].startswith(f"evaluate_model  {job} ") and "CANCELLED" in shown[cancelled]
    Workflow(folder).finish()
    assert "Nothing to be done" in Workflow(folder).finish()
    assert len(list(folder.glob("results/data/*/manifest.json"))) == 1
    logs = {path.parent.parent.name for path in folder.glob("logs/slurm/*/*/*.log")}
    of_runs = list(folder.glob("logs/slurm/group_*_evaluate_model_select_checkpoint_train_model/*.log"))
    assert logs == {"rule_prepare_data"} and len({path.stem for path in of_runs}) == 7
    assert all(re.search(r"GPUs of this process: [01](?!,)", path.read_text()) for path in of_runs)
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        assert store.execute("select count(*) from tags where value like 'train:%'").fetchone() == (6,)
        assert store.execute("select count(*) from tags where value like 'prepare:%'").fetchone() == (1,)
