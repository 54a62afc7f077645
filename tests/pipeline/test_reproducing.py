"""A run is taken again from what MLflow knows of it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.workspace import REPOSITORY
from snaketrain.mlflow_store import Store

SCRIPTS = REPOSITORY / "workflow/scripts"


@pytest.fixture(scope="module")
def uri(workspace, tmp_path_factory):
    uri = f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"
    command = [sys.executable, SCRIPTS / "follow_runs.py", "--results", workspace / "results", "--uri", uri, "--once", "--no-models"]
    subprocess.run(command, check=True)
    return uri


def run_id(uri: str, name: str) -> str:
    store = Store(uri)
    (run,) = store.client.search_runs([store.experiment("words")], f"attributes.run_name = '{name}'")
    return run.info.run_id


def reproduce(workspace: Path, uri: str, name: str) -> subprocess.CompletedProcess:
    command = [sys.executable, SCRIPTS / "reproduce_run.py", run_id(uri, name), "--uri", uri, "--results", workspace / "results"]
    return subprocess.run([*command, "--steps", "10"], capture_output=True, text=True)


@pytest.mark.parametrize("name", ["small", "other"])
def test_equal_to_the_bit(workspace, uri, name):
    done = reproduce(workspace, uri, name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"{name}: 5 of 5 losses up to step 10 are equal to the bit"


def test_other_losses_are_noticed(workspace, uri):
    """As if the run had been started with another seed than was written down."""
    store = Store(uri)
    run = store.get(run_id(uri, "small"))
    file = Path(run.info.artifact_uri) / "training/run.json"
    before = file.read_text()
    other = json.loads(before)
    other["settings"] = [re.sub("^train.seed=.*", "train.seed=77", string) for string in other["settings"]]
    other["inputs"]["data"] = "another"
    file.write_text(json.dumps(other))
    try:
        done = reproduce(workspace, uri, "small")
    finally:
        file.write_text(before)
    assert done.returncode == 1 and "not as it was: data: " in done.stdout
    assert "small: step 2 had a loss of" in done.stdout and "0 of 5 losses" in done.stdout
