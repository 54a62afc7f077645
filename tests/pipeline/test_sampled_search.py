"""A search whose runs Optuna samples, as workflows one after the other."""

import json
from pathlib import Path

import pytest

import sample_runs
from pipeline.warm_python import warm_python
from pipeline.workspace import REPOSITORY, SNAKEMAKE, make_workspace
from snaketrain.config.schema.search import Sampling
from snaketrain.config.trials import Trials
from snaketrain.sampling import SampledSearch

pytestmark = pytest.mark.slow

SAMPLING = {"space": {"train.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "train.seed": [3, 4]}, "trials": 3, "at_once": 2}


def command(folder: Path) -> list[str]:
    return [warm_python(), str(SNAKEMAKE), "--snakefile", str(REPOSITORY / "Snakefile"), "--directory", str(folder), "--cores", "2"]


def test_batches_of_runs_are_proposed_trained_and_reported_to_the_study(tmp_path, monkeypatch):
    folder = make_workspace(tmp_path / "project", runs=None, search={"tuned": SAMPLING}, select={"metric": "loss"})
    monkeypatch.chdir(folder)
    search = SampledSearch("tuned", Sampling.model_validate(SAMPLING), "min", "basis")
    assert search.propose() == 2 and search.propose() == 0
    proposed = Trials.read("tuned").trials  # killed here
    again = SampledSearch("tuned", Sampling.model_validate(SAMPLING), "min", "basis")
    assert sample_runs.sample([again], [*command(folder), "--keep-going"]) == 0
    trials = Trials.read("tuned").trials
    assert [trial.run for trial in trials] == ["tuned-000", "tuned-001", "tuned-002"]
    assert [trial.settings for trial in trials[:2]] == [trial.settings for trial in proposed]
    for trial in trials:
        run = json.loads((folder / f"results/runs/{trial.run}/training/run.json").read_text())
        assert f"train.learning_rate={json.dumps(trial.settings['train.learning_rate'])}" in run["settings"]
        selection = json.loads((folder / f"results/runs/{trial.run}/selection/selection.json").read_text())
        assert trial.value == selection["winner"]["value"]
    assert again.best.value == min(trial.value for trial in trials)
    assert json.loads((folder / "results/comparison/manifest.json").read_text())["facts"]["runs"][0] == again.best.run
