"""A search whose runs Optuna samples, as workflows one after the other."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import limits
import pytest
from pipeline.warm_python import warm_python
from pipeline.workspace import SNAKEMAKE, make_workspace, snakemake

from snaketrain.extras.search.top_level import Trial
from snaketrain.runtime.journal import read_events
from snaketrain.runtime.strict_json import rounded

pytestmark = pytest.mark.slow

SAMPLING = {"space": {"train.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "train.seed": [3, 4]}, "trials": 3, "at_once": 2}
OF_RUNS = ("runs", "searches", "comparison", "logs", "mlflow.db*", "mlartifacts", ".follower.*")


def start(folder: Path) -> subprocess.Popen:
    """The command of the documentation, with `--rerun-incomplete` as in the profiles."""
    script = Path(__file__).with_name("sampling_by.py")
    options = ["--cores", "2", "--keep-going", "--rerun-incomplete"]
    command = [warm_python(), str(script), str(SNAKEMAKE), "config/config.yaml", "--", *options]
    with open(folder / "printed.txt", "a") as printed:
        return subprocess.Popen(command, cwd=folder, stdout=printed, stderr=printed)


def finish(folder: Path) -> str:
    code = start(folder).wait(limits.seconds(240))
    printed = (folder / "printed.txt").read_text()
    assert code == 0, printed[-4000:]
    return printed


def trials(folder: Path) -> list[Trial]:
    return [Trial(**each) for each in json.loads((folder / "results/searches/tuned/trials.json").read_text())["trials"]]


@pytest.fixture(scope="module")
def sampled(tmp_path_factory) -> Path:
    folder = make_workspace(
        tmp_path_factory.mktemp("sampled") / "project", runs=None, search={"tuned": SAMPLING}, select={"metric": "loss"}
    )
    finish(folder)
    return folder


def test_batches_of_runs_are_proposed_trained_and_reported_to_the_study(sampled):
    found = trials(sampled)
    assert [trial.run for trial in found] == ["tuned-000", "tuned-001", "tuned-002"]
    for trial in found:
        run = json.loads((sampled / f"results/runs/{trial.run}/training/run.json").read_text())
        assert run["settings"]["train"]["learning_rate"] == trial.settings["train.learning_rate"]
        selection = json.loads((sampled / f"results/runs/{trial.run}/selection/selection.json").read_text())
        assert trial.value == selection["winner"]["value"]
    best = min(found, key=lambda trial: trial.value)
    assert f"search tuned: the best of 3 runs is {best.run} ({rounded(best.value)}; " in (sampled / "printed.txt").read_text()
    assert json.loads((sampled / "results/comparison/manifest.json").read_text())["facts"]["runs"][0] == best.run


def test_killed_and_started_again_it_becomes_the_same_study(sampled, tmp_path):
    """SIGKILL to all of it, while the runs of the first batch train."""
    folder = shutil.copytree(sampled, tmp_path / "project", symlinks=True, ignore=shutil.ignore_patterns(*OF_RUNS))
    journal = folder / "results/runs/tuned-001/training/journal.jsonl"
    searching = start(folder)
    limits.until(lambda: any(event["event"] == "train" for event in read_events(journal)[0]), 120, searching)
    os.kill(searching.pid, signal.SIGKILL)
    searching.wait()
    assert [trial.value for trial in trials(folder)] == [None, None]
    limits.until(lambda: snakemake(folder, "--unlock", check=False).returncode == 0)
    finish(folder)
    assert trials(folder) == trials(sampled)
    assert len([event for event in read_events(journal)[0] if event["event"] == "attempt"]) == 2
