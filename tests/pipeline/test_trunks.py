"""Runs of a sweep with the same first steps: a job trains these steps once, and both runs continue from there."""

from pathlib import Path

import pytest

from pipeline.test_staleness import dry_run, jobs_in
from pipeline.workspace import REPOSITORY, configuration, make_workspace, snakemake, write_configuration
from snaketrain.runtime.journal import read_events
from snaketrain.tracking.mlflow_store import Store


def configured(*decays: int) -> dict:
    config = configuration()
    config["train"] = {"batch_size": 16, "learning_rate": 1e-3, "warmup": 2, "steps": 12, "evaluate_every": 4}
    config["compute"]["shared_steps_at_least"] = 5
    schedules = {f"decay-{each}": {"use": "warmup_stable_decay", "arguments": {"decay": each}} for each in decays}
    config["runs"] = {name: {"train.schedule": schedule} for name, schedule in schedules.items()}
    return config


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("trunks") / "project")
    for name in ("Snakefile", "workflow"):
        (folder / name).symlink_to(REPOSITORY / name)
    write_configuration(folder, configured(4, 6))
    assert {"train_trunk", "train_model decay-4", "train_model decay-6"} < jobs_in(dry_run(folder))
    snakemake(folder)
    return folder


def test_both_runs_continue_from_the_trunk(finished):
    for run in ("decay-4", "decay-6"):
        events = read_events(finished / f"results/runs/{run}/training/journal.jsonl")[0]
        assert [event["resume_step"] for event in events if event["event"] == "attempt"] == [7]
        assert [event["step"] for event in events if event["event"] == "eval"] == [0, 4, 8, 12]
    assert jobs_in(dry_run(finished)) == set()


def test_mlflow_shows_its_steps_in_both_curves(finished):
    client = Store(f"sqlite:///{finished / 'mlflow.db'}").client
    experiments = {each.name: each.experiment_id for each in client.search_experiments()}
    runs = {run.info.run_name: run for name in ("words", "words-trunks") for run in client.search_runs([experiments[name]])}
    curves = {
        name: {point.step: point.value for point in client.get_metric_history(run.info.run_id, "train/loss")} for name, run in runs.items()
    }
    (trunk,) = (name for name in runs if "-steps-" in name)
    assert runs[trunk].info.status == "FINISHED" and sorted(curves[trunk]) == [2, 4, 6]
    for run in ("decay-4", "decay-6"):
        assert sorted(curves[run]) == [2, 4, 6, 8, 10, 12]
        assert all(curves[run][step] == value for step, value in curves[trunk].items())


def test_the_comparison_shows_the_tree(finished):
    page = (finished / "results/comparison/index.html").read_text()
    assert "<h2>Shared steps</h2>" in page and "7-steps-" in page


def test_a_run_that_is_added_or_removed_repeats_nothing_of_the_others(finished):
    write_configuration(finished, configured(4, 6, 5))
    assert jobs_in(dry_run(finished)) == {f"{rule} decay-5" for rule in ("train_model", "select_checkpoint", "evaluate_model")} | {
        "compare_runs"
    }
    write_configuration(finished, configured(4))
    assert jobs_in(dry_run(finished)) == {"compare_runs"}
    config = configured(4, 6)
    config["compute"]["shared_steps_at_least"] = None
    write_configuration(finished, config)
    assert jobs_in(dry_run(finished)) == set()
