"""What makes a node unfit for a training, as a shell on it finds out, and what is made of the answers."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from snaketrain.launch import node_checks
from snaketrain.launch.node_checks import CANNOT_WRITE, of_clock, plain, unfit_nodes
from snaketrain.slurm.client import Slurm, SlurmError


@pytest.fixture
def run(tmp_path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "temporary").mkdir()
    return tmp_path / "run"


class Nodes(Slurm):
    """Runs the checks here, as each of the nodes; `other`: what is different there."""

    def __init__(self, folder: Path, other: dict[str, dict[str, str]]):
        super().__init__()
        self.folder, self.other = folder, other

    def on_each_node(self, number, hosts, words):
        return "".join(self.on_node(host, list(words)) for host in hosts)

    def on_node(self, host: str, words: list[str]) -> str:
        replaced = self.other.get(host, {})
        if "nothing" in replaced:
            return ""
        words = [replaced.get(word, word) for word in words]
        environment = {
            "PATH": f"{replaced.get('PATH', '')}:{os.environ['PATH']}",
            "TMPDIR": replaced.get("TMPDIR", str(self.folder / "temporary")),
        }
        done = subprocess.run(words, env=environment | {"SLURMD_NODENAME": host}, capture_output=True, text=True, check=True, cwd="/")
        return done.stdout


def found(run: Path, **other: dict[str, str]) -> dict[str, str]:
    return unfit_nodes(Nodes(run.parent, other), "7", ["a1", "a2"], run, [sys.executable], print)


def program(path: Path, script: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_fit_nodes_leave_nothing_behind(run, capsys):
    assert found(run) == {} and found(run, a2={"nothing": ""}) == {}, "a node that does not answer shows at the start"
    assert [*run.iterdir(), *(run.parent / "temporary").iterdir()] == [] and capsys.readouterr().out == ""


def test_a_node_without_python(run):
    assert found(run, a2={sys.executable: "/no/python"}) == {"a2": "has no Python at /no/python, or not what that links to"}


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            "echo 'ImportError: libfoo.so.1: cannot open shared object file' >&2; exit 1",
            "cannot run {}: ImportError: libfoo.so.1: cannot open shared",
        ),
        ("echo 3.6 True", "has another Python at {}: 3.6 instead of 3."),
        (f"echo {sys.version_info[0]}.{sys.version_info[1]} False", "has a Python at {} that does not find the package torch"),
    ],
    ids=["does not run", "another version", "without packages"],
)
def test_a_node_with_another_python(run, script, told):
    python = program(run.parent / "python", script)
    (problem,) = found(run, a2={sys.executable: python}).values()
    assert problem.startswith(told.format(python))


def test_a_node_that_does_not_see_the_working_folder(run):
    problems = found(run, a2={os.getcwd(): "/not/mounted"})
    assert problems == {"a2": "does not see the working folder /not/mounted: is its file system mounted there?"}


@pytest.fixture
def full(run) -> dict[str, str]:
    """A node on which nothing that is written to a folder fits."""
    return {
        "PATH": str(
            Path(
                program(run.parent / "bin/head", "echo \"head: error writing 'standard output': No space left on device\" >&2; exit 1")
            ).parent
        )
    }


def test_a_node_with_a_full_disk(run, full):
    problems = found(run, a2=full)
    assert problems == {"a2": f"{CANNOT_WRITE} {run}: No space left on device"}
    assert list(run.iterdir()) == []


def test_a_folder_that_no_node_can_write_to_is_not_their_fault(run, full):
    """It is on a file system that they share, and the training itself says so."""
    assert found(run, a1=full, a2=full) == {}


def test_a_node_with_a_temporary_folder_that_cannot_be_written_to(run):
    (problem,) = found(run, a2={"TMPDIR": "/proc"}).values()
    assert problem.startswith("cannot write to its temporary folder /proc: ")


def test_a_temporary_folder_that_is_not_there_is_not_used_either(run):
    """Python and torch take /tmp instead."""
    assert found(run, a2={"TMPDIR": "/no/such/folder"}) == {}


@pytest.mark.parametrize(("seconds", "told"), [(-60, "59 seconds behind"), (60, "60 seconds ahead"), (-5, ""), (5, "")])
def test_a_node_with_another_time(seconds, told):
    now = time.time() // 1
    assert told in of_clock(int(now + seconds), now, now) and bool(of_clock(int(now + seconds), now, now)) == bool(told)
    assert not of_clock(int(now + 30), now, now + 40), "the step has waited before it looked at the clock"


def test_a_node_with_another_time_is_unfit(run, monkeypatch):
    clock = {"PATH": str(Path(program(run.parent / "bin/date", "echo 1000")).parent)}
    (problem,) = found(run, a2=clock).values()
    assert problem.startswith("has a clock that is ") and problem.endswith(" seconds behind")


def test_where_no_step_starts_the_training_is_started_all_the_same(run):
    class Refusing(Slurm):
        def on_each_node(self, number, hosts, words):
            raise SlurmError("srun --jobid 7 failed: srun: error: Unable to create step for job 7: busy\nmore")

    said = []
    assert unfit_nodes(Refusing(), "7", ["a1"], run, [sys.executable], said.append) == {}
    assert said == ["its nodes are not checked: srun: error: Unable to create step for job 7: busy"]


@pytest.mark.parametrize(
    ("python", "checked"),
    [
        ([sys.executable], [sys.executable]),
        (["env", "A=1", sys.executable, "staged_python.py", "/scratch", "--"], ["env", "A=1", sys.executable]),
        (["env", "A=1", "bash", "-c", "eval", "compute.setup", "module load", sys.executable], []),
        (["env", "A=1", "apptainer", "exec", "image.sif", "python3"], []),
    ],
    ids=["plain", "staged", "after a setup", "in a container"],
)
def test_only_a_python_that_starts_at_once_is_tried(python, checked):
    assert plain(python) == checked


def test_torch_is_not_imported():
    """The job's script imports this before each start."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import snaketrain.launch.node_checks; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, str(Path(node_checks.__file__).parents[2])], check=True)
