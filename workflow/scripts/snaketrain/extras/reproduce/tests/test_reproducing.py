"""A run is reproduced from its record in MLflow."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from pipeline.warm_python import warm_python
from pipeline.workspace import REPOSITORY, read_configuration, snakemake, write_configuration

from snaketrain.tracking.mlflow_store import Store

pytestmark = pytest.mark.slow

SCRIPTS = "workflow/scripts"


MORE = {
    "in-pieces": {"train.accumulate": 2, "train.clip_norm": 0.1},
    "half": {"train.precision": "bf16", "train.schedule": {"use": "cosine"}},
    "two": {"compute.processes": 2, "train.strategy": {"use": "zero1"}},
    "own": {"train.task": {"use": "own/emphatic.py:Emphatic"}},
}
OWN_TASK = """
from factors import FACTOR
from snaketrain.tasks.text_classification import TextClassification  # noqa: E402


class Emphatic(TextClassification):
    def training_step(self, modules, batch):
        return FACTOR * super().training_step(modules, batch)
"""


@pytest.fixture(scope="module")
def finished(workspace, tmp_path_factory) -> Path:
    """Trainings that are recorded in an MLflow database of their own: the copied one names artifacts that other tests share."""
    folder = Path(shutil.copytree(workspace, tmp_path_factory.mktemp("finished") / "workspace", symlinks=True))
    (folder / "mlflow.db").unlink()
    (folder / "own").mkdir()
    (folder / "own/emphatic.py").write_text(OWN_TASK)
    (folder / "own/factors.py").write_text("FACTOR = 3\n")
    config = read_configuration(folder)
    write_configuration(folder, config | {"runs": config["runs"] | MORE})
    snakemake(folder, "--until", "train_model")
    return folder


@pytest.fixture(scope="module")
def uri(finished) -> str:
    follow(finished)
    return f"sqlite:///{finished}/mlflow.db"


def follow(folder: Path, project: Path = REPOSITORY) -> None:
    command = [warm_python(), project / SCRIPTS / "tools/follow_runs.py", "--results", folder / "results", "--once", "--no-models"]
    subprocess.run(command, check=True)


def run_id(uri: str, name: str) -> str:
    store = Store(uri)
    (run,) = store.client.search_runs([store.experiment("words")], f"attributes.run_name = '{name}'")
    return run.info.run_id


def reproduce(folder: Path, name: str, project: Path = REPOSITORY) -> subprocess.CompletedProcess:
    run = run_id(f"sqlite:///{folder}/mlflow.db", name)
    command = [
        warm_python(),
        project / SCRIPTS / "snaketrain/extras/reproduce/reproduce.py",
        run,
        "--results",
        folder / "results",
        "--steps",
        "10",
    ]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


@pytest.mark.parametrize("name", ["small", "other", *MORE])
def test_losses_are_bitwise_equal(finished, uri, name):
    done = reproduce(finished, name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"{name}: 5 of 5 losses up to step 10 are bit-identical"


def scale_loss(project: Path, factor: int) -> None:
    with open(project / SCRIPTS / "snaketrain/tasks/text_classification.py", "a") as task:
        task.write(
            "\n\nunscaled = TextClassification.training_step\n"
            f"TextClassification.training_step = lambda *given: unscaled(*given) * {factor}\n"
        )


def test_the_recorded_code_is_used(workspace, tmp_path):
    """A training with uncommitted changes, followed by others that were committed."""
    project = tmp_path / "project"
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, project], check=True)
    scale_loss(project, 3)
    folder = Path(shutil.copytree(workspace, tmp_path / "workspace", symlinks=True))
    shutil.rmtree(folder / "results/runs")
    (folder / "mlflow.db").unlink()
    training = "results/runs/small/training/manifest.json"
    snakemake(folder, training, snakefile=project / "Snakefile")
    follow(folder, project)
    subprocess.run(["git", "checkout", "--quiet", "."], cwd=project, check=True)
    scale_loss(project, 5)
    me = ["-c", "user.name=me", "-c", "user.email=me@here"]
    subprocess.run(["git", *me, "commit", "--quiet", "--all", "--message", "another loss"], cwd=project, check=True)
    done = reproduce(folder, "small", project)
    assert "5 of 5 losses up to step 10 are bit-identical" in done.stdout, done.stdout + done.stderr
    assert "using the code of commit" in done.stdout and "with its uncommitted changes" in done.stdout
    shutil.rmtree(project / ".git")  # as if the commit no longer existed
    done = reproduce(folder, "small", project)
    assert done.returncode == 1 and "differs: the code: commit" in done.stdout and "0 of 5 losses" in done.stdout


def test_the_recorded_code_of_the_user_is_used(finished, uri):
    """One of two files of the user was changed, and is restored to its place beside the other."""
    factors, training = finished / "own/factors.py", Path(Store(uri).get(run_id(uri, "own")).info.artifact_uri) / "training"
    assert (training / "code/own/emphatic.py").read_text() == OWN_TASK
    then = factors.read_text()
    factors.write_text("FACTOR = 4\n")
    try:
        done = reproduce(finished, "own")
        told = [
            line for line in done.stdout.splitlines() if not line.startswith("using the code of commit ")
        ]  # of a repository with changes
        assert told == ["using own/factors.py as it was", "own: 5 of 5 losses up to step 10 are bit-identical"]
        (training / "code/own/factors.py").write_text("FACTOR = 5\n")
        assert "own: 0 of 5 losses" in reproduce(finished, "own").stdout
    finally:
        factors.write_text(then)
        (training / "code/own/factors.py").write_text(then)


def test_other_losses_are_noticed(finished, uri):
    """As if the run had been started with another seed than recorded."""
    store = Store(uri)
    run = store.get(run_id(uri, "small"))
    file = Path(run.info.artifact_uri) / "training/run.json"
    assert file.is_relative_to(finished)  # another test's follower would write it again
    before = file.read_text()
    other = json.loads(before)
    other["settings"]["train"]["seed"] = 77
    other["inputs"]["data"] = "another"
    file.write_text(json.dumps(other))
    try:
        done = reproduce(finished, "small")
    finally:
        file.write_text(before)
    assert done.returncode == 1 and "differs: data: " in done.stdout
    assert "small: step 2 had a loss of" in done.stdout and "0 of 5 losses" in done.stdout
