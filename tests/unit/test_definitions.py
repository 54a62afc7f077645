"""What a class sets or inherits is read as Python would find it, or it is unknown, but never wrong."""

import ast
import sys

import pytest

from snaketrain.orchestration.definitions import class_attribute

FILES = {
    "ground": "class Ground:\n    size = 0\n\n\nclass Other(Ground):\n    size = 1\n\n\nclass Mixin(Ground):\n    pass\n",
    "above": "from ground import Ground, Other\nimport ground as g\n",
}
TOLD = {
    "its own": ("class A(Ground):\n    size = 5\n", 5),
    "the last of its own": ("class A(Ground):\n    size = 5\n    size: int = 6\n", 6),
    "inherited": ("class A(Ground):\n    other = 5\n", 0),
    "by a full name": ("class A(g.Other):\n    size: int\n", 1),
    "of the first base": ("class A(Other, Ground):\n    pass\n", 1),
    "what several bases derive from comes last": ("class A(g.Mixin, Other):\n    pass\n", 1),
    "by a star": ("from ground import *\n\n\nclass A(Mixin):\n    pass\n", 0),
    "of a class that is given another attribute": ("Other.rest = 3\n\n\nclass A(Other):\n    pass\n", 1),
    "imported under a condition": ("if True:\n    from ground import Other as Base\n\n\nclass A(Base):\n    pass\n", 1),
    "of its own name": ("class Other(Other):\n    pass\n\n\nA = 1\n\n\nclass A(Other):\n    pass\n", 1),
}
UNTOLD = {
    "a library's base": "import enum\n\n\nclass A(enum.Enum, Ground):\n    pass\n",
    "a method": "class A(Ground):\n    @property\n    def size(self):\n        return 3\n",
    "one of several": "class A(Ground):\n    size, rest = (1, 2)\n",
    "a computed base": "Ground = g.__dict__['Other']\n\n\nclass A(Ground):\n    pass\n",
    "a base that is replaced": "class B:\n    size = 1\n\n\nfrom nowhere import B\n\n\nclass A(B):\n    pass\n",
    "a base from nowhere": "class A(Nowhere):\n    pass\n",
    "a circle": "import above\n\n\nclass A(above.A):\n    pass\n",
    "a function": "def A():\n    pass\n",
}


@pytest.fixture
def beside(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("code", "expected"), TOLD.values(), ids=TOLD)
def test_attributes_are_those_that_python_finds(beside, code, expected):
    file = beside / "above.py"
    file.write_text(file.read_text() + code)
    namespace: dict = {}
    exec(file.read_text(), namespace)
    assert namespace["A"].size == expected
    assert ast.literal_eval(class_attribute(file, "A", "size")[1]) == expected


@pytest.mark.parametrize("code", UNTOLD.values(), ids=UNTOLD)
def test_unknown_attributes_are_not_guessed(beside, code):
    file = beside / "above.py"
    file.write_text(file.read_text() + code)
    assert class_attribute(file, "A", "size")[1] is None


def test_the_nearest_of_several_attributes_is_found(beside):
    (beside / "a.py").write_text("from ground import Other\n\n\nclass B(Other):\n    sizes = 3\n\n\nclass C(B):\n    size = 4\n")
    assert [class_attribute(beside / "a.py", name, "size", "sizes")[0] for name in "BC"] == ["sizes", "size"]
