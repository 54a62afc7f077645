"""Runs of a sweep with the same first steps: a job trains these steps once, and both runs continue from there."""

from pathlib import Path

import pytest
from pipeline.test_staleness import dry_run, jobs_in
from pipeline.workspace import REPOSITORY, configuration, make_workspace, snakemake, write_configuration

from snaketrain.runtime.journal import read_events
from snaketrain.tracking.mlflow_store import Store

pytestmark = pytest.mark.lengthy


def decay(steps: int, **arguments: float) -> dict:
    return {"train.schedule": {"use": "warmup_stable_decay", "arguments": {"decay": steps, **arguments}}}


def configured(*decays: int, **runs: dict) -> dict:
    config = configuration()
    config["train"] = {"batch_size": 16, "learning_rate": 1e-3, "warmup": 2, "steps": 12, "evaluate_every": 4}
    config["shared_steps"] = {"at_least": 5}
    config["runs"] = {f"decay-{each}": decay(each) for each in decays} | runs
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
        assert [event["resume_step"] for event in attempts_of(finished, run)] == [7]
        events = read_events(finished / f"results/runs/{run}/training/journal.jsonl")[0]
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


def test_the_comparison_says_which_steps_were_taken_over(finished):
    page = (finished / "results/comparison/index.html").read_text()
    assert page.count("took over") == 2 and "7-steps-" in page


def test_a_run_that_is_added_or_removed_repeats_nothing_of_the_others(finished):
    write_configuration(finished, configured(4, 6, 5))
    assert jobs_in(dry_run(finished)) == {f"{rule} decay-5" for rule in ("train_model", "select_checkpoint", "evaluate_model")} | {
        "compare_runs"
    }
    write_configuration(finished, configured(4))
    assert jobs_in(dry_run(finished)) == {"compare_runs"}
    config = configured(4, 6)
    config["shared_steps"] = {"at_least": None}
    write_configuration(finished, config)
    assert jobs_in(dry_run(finished)) == set()


@pytest.mark.slow
def test_a_damaged_trunk_is_repaired_where_a_new_run_continues_it(finished):
    (checkpoint,) = finished.glob("results/trunks/*/training/checkpoints/step-00000007/model.safetensors")
    content = bytearray(checkpoint.read_bytes())
    content[-1] ^= 1
    checkpoint.unlink()  # the runs that continued it have links to the same file
    checkpoint.write_bytes(content)
    write_configuration(finished, configured(4, 6))
    assert jobs_in(dry_run(finished)) == set(), "both runs are past it"
    write_configuration(finished, configured(4, 6, lower=decay(6, lowest=0.5)))
    printed = dry_run(finished)
    assert jobs_in(printed) == {"train_trunk", "train_model lower", "select_checkpoint lower", "evaluate_model lower", "compare_runs"}
    assert "step-00000007/model.safetensors: is not what was written. train_trunk runs again." in printed
    snakemake(finished)
    assert [event["resume_step"] for event in attempts_of(finished, "lower")] == [7]
    assert len(attempts_of(finished, "decay-4")) == 1
    assert jobs_in(dry_run(finished)) == set()


def attempts_of(folder: Path, run: str) -> list[dict]:
    events = read_events(folder / f"results/runs/{run}/training/journal.jsonl")[0]
    return [event for event in events if event["event"] == "attempt"]
