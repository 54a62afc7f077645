"""The examples in README and documentation run: tasks and configurations are extracted from them."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import limits
import pytest
import yaml

from pipeline.workspace import REPOSITORY, snakemake
from snaketrain.config.runs import read_runs
from snaketrain.config.schema import Settings
from snaketrain.config.schema.tasks import ModuleSettings
from snaketrain.runtime.journal import read_events

README, OWN_TASK, OWN_MODEL, NOTEBOOK = "README.md", "docs/own_task.md", "docs/own_model.md", "docs/notebook.md"


def block(page: str, language: str, beginning: str) -> str:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    (found,) = [block for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) if block.startswith(beginning)]
    return found


def run_task(page: str, folder: Path) -> dict[str, dict[str, float]]:
    """The test metrics of the page's runs."""
    (folder / "my_task.py").write_text(block(page, "python", "# my_task.py"))
    (folder / "my_config.yaml").write_text(block(page, "yaml", "# my_config.yaml"))
    snakemake(folder, "--configfile", "my_config.yaml")
    return {
        run: json.loads((folder / f"results/runs/{run}/evaluation/test_results.json").read_text())["metrics"] for run in ("small", "wide")
    }


def test_the_task_of_the_readme_runs_unchanged(tmp_path):
    found = run_task(README, tmp_path)
    assert len([line for line in block(README, "python", "# my_task.py").splitlines() if line.strip()]) <= 25
    assert found["wide"]["loss"] < 0.05 and found["small"]["loss"] < 0.06  # the mean digit gives 0.073, the noisy image 0.25


@pytest.mark.slow
def test_the_task_of_the_documentation_runs_unchanged(tmp_path):
    found = run_task(OWN_TASK, tmp_path)
    for run in ("small", "wide"):
        table = (tmp_path / f"results/runs/{run}/evaluation/test_predictions.csv").read_text().splitlines()
        assert table[0] == "id,error" and len(table) == 1 + 180
    assert found["wide"]["gain"] > 5 and found["small"]["gain"] > 4  # copying the input gives 1, the mean digit 3.5


def test_the_configuration_of_the_readme_is_valid():
    shown = block(README, "yaml", "# my.yaml")
    assert len(shown.splitlines()) <= 16
    assert len(read_runs(yaml.safe_load(shown))) == 6


def test_the_configuration_of_a_module_is_valid():
    shown = yaml.safe_load(block(OWN_MODEL, "yaml", "# what differs"))
    settings = Settings.model_validate(shown)
    assert settings.select.metric in ModuleSettings.model_validate(settings.train.task.arguments).logged
    whole = yaml.safe_load((REPOSITORY / "config/examples/regression_regularised.yaml").read_text())["train"]["task"]["arguments"]
    assert shown["train"]["task"]["arguments"].keys() == whole.keys()


@pytest.mark.slow
def test_the_script_of_the_documentation_trains_on_two_processes(workspace, tmp_path):
    for name in ("config", "results"):
        (tmp_path / name).symlink_to(workspace / name)
    (tmp_path / "on_two.py").write_text(block(NOTEBOOK, "python", "# on_two.py").replace("from_scratch", "small"))
    done = subprocess.run([sys.executable, "on_two.py"], cwd=tmp_path, capture_output=True, text=True, timeout=limits.seconds(300))
    assert done.returncode == 0, done.stderr
    attempts = [event for event in read_events(tmp_path / "scratch/two/journal.jsonl")[0] if event["event"] == "attempt"]
    assert [attempt["processes"] for attempt in attempts] == [2]
    evaluated = json.loads((workspace / "results/runs/small/evaluation/dev_results.json").read_text())["metrics"]
    assert ast.literal_eval(done.stdout.splitlines()[-1])["loss"] == pytest.approx(evaluated["loss"], rel=0.2), "its last step"


def test_the_notebook_of_the_documentation_trains(workspace, tmp_path, monkeypatch):
    for name in ("config", "results"):
        (tmp_path / name).symlink_to(workspace / name)
    monkeypatch.chdir(tmp_path)
    cell = block(NOTEBOOK, "python", "# a notebook").replace("from_scratch", "small")
    names: dict[str, Any] = {}
    exec(cell, names)
    settings, trainer, batch = names["settings"], names["trainer"], names["trainer"].data.train.batch([0, 1])
    assert settings.epochs == 1 and trainer.complete and names["state"].step == trainer.plan.steps > 0
    assert trainer.measure()["loss"] == trainer.measure()["loss"] < 1 and len(batch["labels"]) == 2
    exec(cell, names)  # resumed, with nothing left to do
    assert names["state"].step == trainer.plan.steps and len(names["model"].state_dict()) > 10
    (tmp_path / "results").unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"^results/data/.*/manifest.json: .* \.venv/bin/snakemake (results/\S+/manifest.json )+--profile profiles/local --configfile",
    ):
        exec(cell, names)
    with pytest.raises(LookupError, match="no run 'smell'. Did you mean 'small'"):
        exec(cell.replace("small", "smell"), names)
