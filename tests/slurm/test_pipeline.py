"""The workflow on a real cluster of several nodes, where nothing goes wrong."""

import json
import re
import sqlite3
from contextlib import closing

from pipeline.workspace import read_configuration, write_configuration

from slurm.lab import RUN, STEPS, TRAINING, Workflow, events, make, set_pace, steps, until


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
    assert ranks == [f"rank-{rank}.log" for rank in range(4)]
    results = json.loads((undisturbed / RUN / "evaluation/test_results.json").read_text())
    assert results["examples"] == 36 and 0 <= results["metrics"]["accuracy"] <= 1
    assert (undisturbed / "results/comparison/runs.csv").is_file()


def test_processes_on_whole_nodes_see_their_gpus(undisturbed):
    """SLURM shows them to the job's script alone, unless each step asks for them."""
    (log,) = undisturbed.glob("logs/slurm/rule_train_model/*/*.log")
    assert re.findall(r"GPUs of this process: (\S+)", log.read_text()) == ["0,1"] * 4


def test_logs_hold_no_noise_of_connections(undisturbed):
    for log in undisturbed.glob("logs/slurm/rule_train_model/*/*.log"):
        assert "[c10d]" not in log.read_text()


def test_a_second_time_there_is_nothing_to_do(undisturbed):
    assert "Nothing to be done" in Workflow(undisturbed).finish()


def test_six_runs_of_a_sweep_share_one_preparation_and_run_side_by_side(cluster, tmp_path):
    folder = make(tmp_path, pace=1.0, nodes="1", processes=1, threads=1, sbatch="--gpus-per-node=1")
    config = read_configuration(folder)
    config |= {"runs": {}, "sweeps": {"rate": {"train.learning_rate": [1e-3, 1e-2], "train.seed": [0, 1, 2]}}}
    write_configuration(folder, config)
    workflow = Workflow(folder)

    def journals() -> list[str]:
        return [path.read_text() for path in folder.glob("results/runs/*/training/journal.jsonl")]

    until(lambda: sum('"event": "train"' in journal for journal in journals()) == 6, "all six train", workflow=workflow)
    assert not any('"event": "end"' in journal for journal in journals())
    set_pace(folder, 0)
    workflow.finish()
    assert len(list(folder.glob("logs/slurm/rule_prepare_data/*/*.log"))) == 1
    assert len(list(folder.glob("results/data/*/manifest.json"))) == 1
    logs = list(folder.glob("logs/slurm/rule_train_model/*/*.log"))
    assert len({path.stem for path in logs}) == 6
    assert all(re.search(r"GPUs of this process: [01](?!,)", path.read_text()) for path in logs)
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        assert store.execute("select count(*) from tags where value like 'train:%'").fetchone() == (6,)
        assert store.execute("select count(*) from tags where value like 'prepare:%'").fetchone() == (1,)
