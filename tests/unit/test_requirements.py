"""What the package imports is installed with it, as `pip install -e .` does in the environment of a notebook."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "workflow/scripts/snaketrain"
ON_REQUEST = {"torchao"}  # docs/strategies.md says when to install it


def imported(file: Path) -> Iterator[str]:
    """The top-level packages that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def plain(requirement: str) -> str:
    """The name of a distribution, as pip compares it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;(]", requirement.strip(), maxsplit=1)[0]).lower()


def with_their_own(wanted: set[str]) -> set[str]:
    """Distributions and all that they need themselves, without their extras."""
    found, waiting = set[str](), list(wanted)
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            try:
                waiting += [plain(each) for each in requires(name) or [] if "extra ==" not in each]
            except PackageNotFoundError:  # of another platform
                continue
    return found


def test_what_the_package_imports_is_among_its_dependencies():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    installed, by_module = with_their_own(set(map(plain, declared))), packages_distributions()
    used = {name for file in PACKAGE.rglob("*.py") for name in imported(file)} - sys.stdlib_module_names - {"snaketrain"} - ON_REQUEST
    assert len(used) > 20
    assert {name for name in used if installed.isdisjoint(map(plain, by_module.get(name, [name])))} == set()
