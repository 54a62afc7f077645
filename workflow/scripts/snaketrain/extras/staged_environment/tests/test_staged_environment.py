"""Python from a copy of its environment: a real virtual environment, packed and copied by real processes."""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import limits
import pytest

from snaketrain.config.errors import ConfigurationError
from snaketrain.config.runs import read_runs
from snaketrain.config.secrets import environment_problems
from snaketrain.extras.staged_environment import staged_python
from snaketrain.orchestration.launching import before_first_job, launch, python_words

TOOL = Path(staged_python.__file__)
PACK = "import sys; sys.path.insert(0, sys.argv[1]); from staged_python import pack_environment; print(pack_environment(print))"
WHERE = "import os, sys, package; print(sys.prefix, package.__file__, os.environ.get('PASSED'), sys.argv[1:])"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    return folder


@pytest.fixture
def environment(made, tmp_path, monkeypatch):
    """With one package; the working directory is another one."""
    monkeypatch.chdir(tmp_path)
    packages = next((made / "venv/lib").glob("python3*")) / "site-packages"
    for name, text in {"package/__init__.py": "", "package-1.dist-info/RECORD": "package/__init__.py,,\n"}.items():
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).write_text(text)
    return packages


@pytest.fixture
def python(made, environment):
    return made / "venv/bin/python"


def run(*words: object, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=limits.seconds(60), env={"PATH": "/usr/bin:/bin", **variables}
    )


def packed(python) -> Path:
    done = run(python, "-c", PACK, TOOL.parent)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[-1])


def staged(python, folder, **variables: str) -> subprocess.CompletedProcess:
    done = run(python, TOOL, folder, "--", "-c", WHERE, "an argument", **variables)
    assert done.returncode == 0, done.stderr
    return done


def test_python_and_its_packages_come_from_the_copy(python, tmp_path):
    name = packed(python).stem
    (tmp_path / "local").mkdir()
    copy = tmp_path / f"local/snaketrain-{os.getuid()}" / name
    for start in (1, 2):
        found = staged(python, "$DISK/local", DISK=str(tmp_path), PASSED="on")
        package = next((copy / "lib").glob("python3*")) / "site-packages/package/__init__.py"
        assert (found.stdout, found.stderr) == (f"{copy} {package} on ['an argument']\n", "")
        assert start == 1 or (copy / "kept").exists()
        (copy / "kept").touch()
    assert copy.parent.stat().st_mode & 0o777 == 0o700


def test_jobs_that_start_at_once_make_one_copy(python, tmp_path):
    name = packed(python).stem
    words = list(map(str, (python, TOOL, tmp_path, "--", "-u", "-c", f"{WHERE}; input()")))  # all run at the same time
    partial = tmp_path / f"snaketrain-{os.getuid()}" / f"{name}.partial"
    partial.mkdir(parents=True)
    (partial / "torn").touch()  # left by a job that was killed
    partial.parent.chmod(0o700)
    slow = tmp_path / "bin/tar"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\necho >> {tmp_path}/unpacked\nsleep 0.5\nexec {shutil.which("tar")} "$@"\n')
    slow.chmod(0o755)
    path = {"PATH": f"{slow.parent}:/usr/bin:/bin"}
    jobs = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=path) for _ in range(4)]
    found = {job.stdout.readline().split()[0] for job in jobs}
    for job in jobs:
        job.communicate("\n", timeout=limits.seconds(60))
    assert found == {str(partial.with_suffix(""))}
    assert (tmp_path / "unpacked").read_text() == "\n" and not (partial.with_suffix("") / "torn").exists()


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        ("$NOT_SET", "$NOT_SET is not an absolute path on this node: it expands to '$NOT_SET'"),
        ("/proc", "/proc/snaketrain-"),
        ("here", "here is not an absolute path"),
    ],
)
def test_without_a_copy_the_environment_itself_is_used_and_a_line_says_so(made, python, folder, told):
    packed(python)
    found = staged(python, folder)
    assert found.stdout.startswith(f"{made}/venv ")
    assert (
        found.stderr.startswith("warning: compute.stage_environment on ")
        and told in found.stderr
        and "Python is started from" in found.stderr
    )


def test_a_changed_environment_is_packed_again(made, python, environment, tmp_path):
    old = packed(python)
    assert packed(python) == old
    (environment / "other-1.dist-info").mkdir()
    try:
        (environment / "other-1.dist-info/RECORD").write_text("")
        found = staged(python, tmp_path)
        assert "the environment was changed after snakemake was started" in found.stderr and found.stdout.startswith(f"{made}/venv ")
        assert packed(python) != old and not old.exists()
    finally:
        shutil.rmtree(environment / "other-1.dist-info")


def test_too_little_space_is_reported(tmp_path, monkeypatch):
    (tmp_path / "x.tar").write_bytes(bytes(1000))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 999))
    with pytest.raises(staged_python.CannotStage, match="GB free"):
        staged_python.extract(tmp_path / "x.tar", tmp_path / "copy")


def test_a_copy_that_nobody_uses_any_more_is_deleted(tmp_path):
    """But neither a new one, nor one that is in use."""
    for name in ("old", "fresh", "used"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.lock").touch()
    for name in ("old", "used"):
        os.utime(tmp_path / f"{name}.lock", (0, time.time() - 30 * 24 * 3600))
    lock = staged_python.lock(tmp_path / "used.lock", fcntl.LOCK_SH)
    before = len(os.listdir("/proc/self/fd"))
    staged_python.remove_unused(tmp_path, "ours")
    assert len(os.listdir("/proc/self/fd")) == before  # also that of the lock which it did not get
    os.close(lock)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["fresh", "used"]


def test_outside_of_a_virtual_environment_it_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    with pytest.raises(staged_python.CannotStage, match="is not in a virtual environment"):
        staged_python.pack_environment(print)


BASE = {"data": {"train": {"path": "x.csv"}, "tokenizer": {"path": "x"}}, "model": {"use": "transformers.BertForSequenceClassification"}}


def test_trainings_start_through_the_copy_also_on_several_nodes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = read_runs(BASE | {"runs": {"a": {"compute.stage_environment": "$DISK"}, "b": {}}})
    staged, plain = (runs[name].compute for name in "ab")
    assert python_words(staged) == [*python_words(plain), str(TOOL), "$DISK", "--"]
    assert str(TOOL) in launch(staged, in_slurm_job=True) and "staged" not in launch(plain, in_slurm_job=True)
    asked = []
    monkeypatch.setattr("snaketrain.extras.staged_environment.launching.pack_environment", asked.append)
    before_first_job([plain], "local")
    assert not asked
    before_first_job([plain, staged], "local")
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("compute", "told"),
    [
        ({"container": "x.sif", "stage_environment": "/scratch"}, "but the `container` has its own Python: remove one of them."),
        ({"stage_environment": "scratch"}, "is 'scratch': write an absolute path on the nodes' own disks, or a variable such as $TMPDIR."),
    ],
)
def test_contradictions(compute, told):
    with pytest.raises(ConfigurationError) as error:
        read_runs(BASE | {"compute": compute})
    (problem,) = error.value.problems
    assert problem.startswith("compute: `stage_environment` ") and problem.endswith(told)


def test_a_secret_is_for_the_shell_to_replace():
    config = {"compute": {"stage_environment": "/scratch/lang-und-geheim"}}
    (problem,) = environment_problems(config, {"SCRATCH_TOKEN": "lang-und-geheim"})
    assert problem.endswith('Write "$SCRATCH_TOKEN" here: the shell replaces it, and jobs inherit the environment.')
