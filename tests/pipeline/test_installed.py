"""The package that the Snakefile uses: the one beside it, or none; and the environments that rules do not have."""

import os
import subprocess
import sys
from pathlib import Path

import limits
import pytest

from pipeline.workspace import REPOSITORY, make_workspace, snakemake

UNINSTALLED = """
import sys

sys.path[:] = [path for path in sys.path if not path.endswith("workflow/scripts")]
"""


@pytest.fixture
def printed(tmp_path):
    """What a dry run prints that is refused."""

    def run(snakefile: Path, package: Path) -> str:
        words = [sys.executable, "-m", "snakemake", "-n", "--snakefile", snakefile, "--directory", make_workspace(tmp_path / "project")]
        environment = os.environ | {"PYTHONPATH": str(package)}
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=limits.seconds(120))
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_the_package_of_another_copy_is_refused(tmp_path, printed):
    copy = tmp_path / "a copy"
    (copy / "workflow/scripts/snaketrain").mkdir(parents=True)
    (copy / "workflow/Snakefile").write_bytes((REPOSITORY / "workflow/Snakefile").read_bytes())
    scripts = REPOSITORY / "workflow/scripts"
    said = printed(copy / "workflow/Snakefile", scripts)
    assert f"This workflow is {copy}/workflow, but Python finds the package of another copy: {scripts}/snaketrain. " in said
    assert f"-m pip install --no-deps --editable '{copy}'. Or for one command: PYTHONPATH='{copy}/workflow/scripts'" in said


def test_without_the_package_it_says_how_to_install_it(tmp_path, printed):
    """Also the profile of the workflow, which asks for its console, accepts that there is none."""
    (tmp_path / "sitecustomize.py").write_text(UNINSTALLED)
    said = printed(REPOSITORY / "Snakefile", tmp_path)
    assert "Python has no package snaketrain. Run `make .venv/installed` here" in said and "usage:" not in said
    assert f"workflow specific profile {REPOSITORY}/profiles/default" in said


@pytest.mark.parametrize("method", ["apptainer", "env-modules"])
def test_a_deployment_method_that_would_do_nothing_is_refused_before_any_job(tmp_path, method):
    done = snakemake(make_workspace(tmp_path / "project"), "--software-deployment-method", method, check=False)
    assert done.returncode == 1 and "--software-deployment-method: no rule names a container" in done.stderr
    assert not list(tmp_path.rglob("results/*/*/manifest.json"))


def test_a_deployment_method_is_left_to_a_workflow_whose_own_rules_name_environments(tmp_path):
    own = f'include: "{REPOSITORY}/Snakefile"\n\nrule own:\n    output: "own.txt"\n    envmodules: "a/1"\n    shell: "echo > {{output}}"\n'
    (tmp_path / "own.smk").write_text(own)
    arguments = "own.txt", "--software-deployment-method", "env-modules"
    done = snakemake(make_workspace(tmp_path / "project"), *arguments, snakefile=tmp_path / "own.smk", check=False)
    assert "rule own:" in done.stderr and "module" in done.stderr, "it was begun, whether or not this machine has modules"
