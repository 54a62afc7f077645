"""Each mutation can still be applied, and tests/mutations.py distinguishes detected from surviving ones."""

import os
import subprocess
import sys
from pathlib import Path

import mutations
import pytest

TESTS = Path(__file__).parents[1]
EVERY = mutations.read_table(mutations.TABLE)[0]


def test_there_are_sixty_mutations_with_different_names():
    assert len({mutation.name for mutation in EVERY}) == len(EVERY) >= 60


@pytest.mark.parametrize("mutation", EVERY, ids=lambda mutation: mutation.name)
def test_a_mutation_can_be_applied_and_its_tests_are_there(mutation):
    assert mutation.line(mutations.REPOSITORY) and mutation.new != mutation.old
    for test in mutation.tests:
        file, _, function = test.partition("::")
        path = mutations.REPOSITORY / mutations.from_top(file)
        assert not function or f"def {function}(" in path.read_text()
        assert path.is_file()


TABLE = """
[[mutation]]
name = "noticed"
file = "sums.py"
old = "a + b"
new = "a - b"
tests = ["test_sums.py"]

[[mutation]]
name = "not noticed"
file = "sums.py"
old = "a * b"
new = "a / b"
tests = ["test_sums.py"]

[[mutation]]
name = "broken"
file = "sums.py"
old = "import math"
new = "import maths"
tests = ["test_sums.py"]
"""


@pytest.fixture
def repository(tmp_path) -> Path:
    """A repository with a tested function and an untested one."""
    here = tmp_path / "small"
    files = {
        "workflow/scripts/sums.py": "import math\n\n\ndef add(a, b):\n    return a + b\n\n\ndef times(a, b):\n    return a * b\n",
        "tests/test_sums.py": "from sums import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n",
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["workflow/scripts"]\n',
        "table.toml": TABLE,
    }
    for name, content in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(content)
    subprocess.run(["git", "init", "--quiet", str(here)], check=True)
    return here


def run(repository: Path, *only: str) -> subprocess.CompletedProcess:
    script = [sys.executable, str(TESTS / "mutations.py"), "--repository", str(repository), "--table", str(repository / "table.toml")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run([*script, *(word for name in only for word in ("--only", name))], capture_output=True, text=True, env=environment)


def test_it_reports_which_test_failed_and_which_mutations_survived(repository):
    before = (repository / "workflow/scripts/sums.py").read_text()
    done = run(repository, "noticed")
    noticed, missed = (line for line in done.stdout.splitlines() if "sums.py:" in line)
    assert noticed.startswith("noticed ") and "sums.py:5" in noticed and noticed.endswith("killed by test_sums.py::test_add")
    assert missed.startswith("not noticed ") and "sums.py:9" in missed and missed.endswith("SURVIVED")
    assert "1 of 2 mutations are killed" in done.stdout
    assert done.returncode == 1 and "Survived: not noticed" in done.stderr
    assert (repository / "workflow/scripts/sums.py").read_text() == before and not list(repository.rglob("__pycache__"))


def test_tests_that_do_not_run_notice_nothing(repository):
    done = run(repository, "broken")
    assert done.returncode == 1 and "'broken': the tests did not run" in done.stderr


@pytest.mark.parametrize(("text", "words"), [("a - b", "has no line with it"), ("a + b  # a + b", "has it in lines [5, 5]")])
def test_a_mutation_that_cannot_be_applied_is_an_error(repository, text, words):
    path = repository / "workflow/scripts/sums.py"
    path.write_text(path.read_text().replace("a + b", text))
    done = run(repository)
    assert done.returncode == 1 and f"'noticed': sums.py {words}" in done.stderr and not done.stdout


def test_without_a_mutation_the_tests_must_pass(repository):
    (repository / "tests/test_sums.py").write_text("def test_nothing():\n    assert False\n")
    done = run(repository, "noticed")
    assert done.returncode == 1 and "The tests fail without any mutation" in done.stderr
