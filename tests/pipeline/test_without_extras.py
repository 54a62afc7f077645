"""The core runs without extras: each can be deleted."""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.workspace import REPOSITORY, keep_code_of_a_copy, make_workspace, read_configuration, snakemake, write_configuration
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


@pytest.fixture
def unregistered(workspace, tmp_path) -> Path:
    """A finished project."""
    return without_registry(Path(shutil.copytree(workspace, tmp_path / "project", symlinks=True)))


def used_by(script: str) -> set[str]:
    """The extras whose code counts for what a script makes."""
    return {module.split(".")[2] for module in code_digests(SCRIPTS / script) if module.startswith("snaketrain.extras.")}


def planned_without(extras: list[str], folder: Path, code: Path) -> str:
    snakefile = code_without(extras, code)
    keep_code_of_a_copy(folder, code)
    done = snakemake(folder, "--dry-run", snakefile=snakefile)
    return done.stdout + done.stderr


def test_without_extras_nothing_is_stale_that_does_not_run_their_code(unregistered, tmp_path):
    """Together, those that no stage uses, those for the page alone, and those that prepare data; test_layers.py shows that none needs another."""
    fetches, prepares, compares = (used_by(script) for script in ("fetch_data.py", "prepare_data.py", "compare_runs.py"))
    unused, shown, prepared = sorted({*NAMES} - fetches - prepares - compares), sorted(compares - prepares), sorted(prepares - fetches)
    assert len(unused) > 5 and "Nothing to be done" in planned_without(unused, unregistered, tmp_path / "unused")
    if shown:
        printed = planned_without(shown, unregistered, tmp_path / "shown")
        assert "rule compare_runs" in printed and "rule train_model" not in printed
    if prepared:
        printed = planned_without(prepared, unregistered, tmp_path / "prepared")
        assert "rule prepare_data" in printed and "rule train_model" in printed and "rule fetch_data" not in printed


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_without_an_extra_nothing_is_stale_that_does_not_run_its_code(name, unregistered, tmp_path):
    printed = planned_without([name], unregistered, tmp_path / "code")
    fetches, prepares, compares = (name in used_by(script) for script in ("fetch_data.py", "prepare_data.py", "compare_runs.py"))
    assert ("Nothing to be done" in printed) != (prepares or compares)
    assert ("rule train_model" in printed) == prepares
    assert ("rule prepare_data" in printed) == prepares and ("rule fetch_data" in printed) == fetches
