"""What the README shows is what runs: its task file and configuration are taken out of it, and its settings are read."""

import json
import re

import pytest
import yaml

from pipeline.workspace import REPOSITORY, snakemake
from snaketrain.config.schema import Settings
from snaketrain.config.schema.module_task import ModuleSettings

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def block(language: str, beginning: str) -> str:
    (found,) = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if text.startswith(beginning)]
    return found


def test_the_task_file_of_the_readme_runs_as_it_stands(tmp_path):
    task = block("python", "# my_task.py")
    assert 20 <= len([line for line in task.splitlines() if line.strip()]) <= 60
    (tmp_path / "my_task.py").write_text(task)
    (tmp_path / "my_config.yaml").write_text(block("yaml", "# my_config.yaml"))
    snakemake(tmp_path, "--configfile", "my_config.yaml")
    gains = {}
    for run in ("small", "wide"):
        gains[run] = json.loads((tmp_path / f"results/runs/{run}/evaluation/test_results.json").read_text())["metrics"]["gain"]
        table = (tmp_path / f"results/runs/{run}/evaluation/test_predictions.csv").read_text().splitlines()
        assert table[0] == "id,error" and len(table) == 1 + 180
    assert gains["wide"] > 5 and gains["small"] > 4  # copying what it is given makes 1, always the mean digit 3.5


def test_the_configuration_of_a_module_is_one():
    shown = yaml.safe_load(block("yaml", "# what differs"))
    settings = Settings.model_validate(shown)
    assert settings.select.metric in ModuleSettings.model_validate(settings.train.task.arguments).logged
    whole = yaml.safe_load((REPOSITORY / "config/examples/regression_regularised.yaml").read_text())["train"]["task"]["arguments"]
    assert shown["train"]["task"]["arguments"].keys() == whole.keys()


@pytest.mark.parametrize("name", ["steps", "count", "on_worker_start", "train_epoch", "state", "load_state", "wraps", "describe"])
def test_what_may_be_overridden_exists(name):
    from snaketrain.tasks.base import Task

    assert f"`{name}" in README and hasattr(Task, name)
