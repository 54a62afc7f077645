"""The core runs without extras: each can be deleted."""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.workspace import REPOSITORY, make_workspace, read_configuration, snakemake, write_configuration
from snaketrain.orchestration.code_digest import SCRIPTS, code_digests

EXTRAS = Path("workflow/scripts/snaketrain/extras")
NAMES = sorted(path.parent.name for path in (REPOSITORY / EXTRAS).glob("*/__init__.py"))


def code_without(extras: list[str], folder: Path) -> Path:
    """The Snakefile of a copy of the workflow."""
    shutil.copytree(REPOSITORY / "workflow", folder / "workflow", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "Snakefile", folder)
    for name in extras:
        shutil.rmtree(folder / EXTRAS / name)
    return folder / "Snakefile"


def without_registry(folder: Path) -> Path:
    """The project without the setting of the extra `registry`, which the tests' projects have; it makes nothing stale."""
    config = read_configuration(folder)
    config["tracking"].pop("register_models", None)
    write_configuration(folder, config)
    return folder


def test_a_workflow_runs_without_any_extra(tmp_path):
    folder = without_registry(make_workspace(tmp_path / "project", runs={"small": {}}))
    snakemake(folder, snakefile=code_without(NAMES, tmp_path / "code"))
    results = json.loads((folder / "results/runs/small/evaluation/test_results.json").read_text())
    assert 0 <= results["metrics"]["accuracy"] <= 1 and (folder / "results/comparison/index.html").is_file()


@pytest.mark.parametrize("name", NAMES)
def test_without_an_extra_nothing_is_stale_that_does_not_run_its_code(name, tmp_path, workspace):
    folder = without_registry(Path(shutil.copytree(workspace, tmp_path / "project", symlinks=True)))
    done = snakemake(folder, "--dry-run", snakefile=code_without([name], tmp_path / "code"))
    fetches, prepares, compares = (
        any(each.startswith(f"snaketrain.extras.{name}.") for each in code_digests(SCRIPTS / script))
        for script in ("fetch_data.py", "prepare_data.py", "compare_runs.py")
    )
    assert ("Nothing to be done" in done.stdout + done.stderr) != (prepares or compares)
    assert ("rule train_model" in done.stdout) == prepares
    assert ("rule prepare_data" in done.stdout) == prepares and ("rule fetch_data" in done.stdout) == fetches
