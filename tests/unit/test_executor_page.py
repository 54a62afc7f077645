"""What the executor takes from the plug-in and from Snakemake's interface is there, and docs/executor.md lists it."""

import ast
import importlib
import inspect
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from snakemake_executor_plugin_slurm import Executor

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "workflow/scripts/snakemake_executor_plugin_slurm_steady"
PAGE = (ROOT / "docs/executor.md").read_text(encoding="utf-8")
PLUGIN = "snakemake_executor_plugin_slurm"
OF_PYTHON = {"__doc__", "__module__", "__dict__", "__weakref__", "__abstractmethods__", "_abc_impl"}


def names_of(kind: type) -> set[str]:
    """The methods of a class, and the attributes that they set."""
    source = ast.parse(inspect.getsource(kind).lstrip())
    targets = (node for node in ast.walk(source) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return (vars(kind).keys() - OF_PYTHON) | {node.attr for node in targets if getattr(node.value, "id", "") == "self"}


INTERFACE = set().union(*(names_of(kind) for kind in Executor.__mro__[1:-1] if kind.__module__ != "abc"))
OF_PLUGIN = names_of(Executor) - INTERFACE


def used(file: Path) -> tuple[set[str], set[str]]:
    """Of the plug-in, and of the interface: what the parts override, read or call of themselves, and functions that they import."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PLUGIN}.")]
    functions = {name.name for node in imported for name in node.names}
    parts = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in PARTS]
    names = {node.name for part in parts for node in part.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in (node for part in parts for node in ast.walk(part) if isinstance(node, ast.Attribute)):
        of_super = isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "super"
        if of_super or getattr(node.value, "id", "") == "self":
            names.add(node.attr)
    return (names & OF_PLUGIN) | functions, names & INTERFACE


PARTS = ("Following", "Named", "Patient", "Adopting", "Looking", "Explained", "SteadyExecutor")
ROWS = re.findall(r"^\| `(\w+\.py)` \|([^|]*)\|([^|]*)\|$", PAGE, re.MULTILINE)


def test_the_page_lists_what_each_part_uses():
    listed = {file: tuple(set(re.findall(r"`(\w+)(?:\(.*?\))?`", cell)) for cell in cells) for file, *cells in ROWS}
    files = [
        *(file for file in PACKAGE.glob("*.py") if file.name != "__init__.py"),
        PACKAGE.parent / "snaketrain/orchestration/submissions.py",
    ]
    assert listed == {file.name: found for file in files if any(found := used(file))}


def test_all_parts_are_looked_through():
    derived = importlib.import_module(f"{PACKAGE.name}.executor").SteadyExecutor.__mro__
    assert {kind.__name__ for kind in derived if kind.__module__.startswith(PACKAGE.name)} == set(PARTS)


@pytest.mark.parametrize("given", sorted({call for _, *cells in ROWS for cell in cells for call in re.findall(r"`(\w+\(.*?\))`", cell)}))
def test_what_is_called_takes_what_the_page_says(given):
    name, arguments = given.rstrip(")").split("(")
    modules = [importlib.import_module(f"{PLUGIN}.{module}") for module in ("submit_string", "utils")]
    function = next(getattr(each, name) for each in (Executor, *modules) if hasattr(each, name))
    taken = [each for each in inspect.signature(function).parameters.values() if each.name != "self" and each.kind is not each.VAR_KEYWORD]
    expected = [name for name in arguments.split(", ") if name]
    assert [each.name for each in taken[: len(expected)]] == expected
    assert all(each.default is not each.empty for each in taken[len(expected) :])


def test_the_version_is_the_one_that_was_looked_at():
    assert f"version {version('snakemake-executor-plugin-slurm')} of the plug-in" in PAGE
