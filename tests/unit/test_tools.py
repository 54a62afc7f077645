"""Every option of every tool has a help text."""

import ast
from pathlib import Path

import pytest

TOOLS = sorted((Path(__file__).parents[2] / "workflow/scripts/tools").glob("*.py"))


@pytest.mark.parametrize("tool", TOOLS, ids=lambda path: path.stem)
def test_each_option_has_a_help_text_that_stands_by_itself(tool):
    calls = [node for node in ast.walk(ast.parse(tool.read_text())) if isinstance(node, ast.Call)]
    options = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"]
    assert options
    for option in options:
        (text,) = [keyword.value.value for keyword in option.keywords if keyword.arg == "help"] or [""]
        assert len(text.split()) >= 3 and not text.startswith(("of ", "in ", "on ", "at ", "before ", "between ")), ast.unparse(option)
