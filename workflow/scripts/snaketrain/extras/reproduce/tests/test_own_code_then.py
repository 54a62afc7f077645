"""The code as it was: the user's own files, and the project with uncommitted changes."""

import subprocess

import pytest

from snaketrain.extras.reproduce import reproduce
from snaketrain.extras.reproduce.reproduce import code_at, out_of_reach, with_own_code, written_out
from snaketrain.runtime import provenance
from snaketrain.runtime.manifests import write_text


def test_the_users_files_are_put_in_their_places(tmp_path):
    root, then = tmp_path / "root", tmp_path / "then"
    for name in ("mine.py", "own/task.py", "own/data.csv", "own/deep/part.py", "results/data.arrow"):
        write_text(root / name, f"{name} now")
    for name in ("mine.py", "own/deep/part.py", "own/gone/away.py"):
        write_text(then / name, f"{name} then")
    write_text(then / "own/task.py", "own/task.py now")
    own = {name: then / name for name in ("mine.py", "own/task.py", "own/deep/part.py", "own/gone/away.py")}
    (tmp_path / "made").mkdir()
    seen = with_own_code(root, own, tmp_path / "made")
    expected = {"mine.py": "then", "own/task.py": "now", "own/data.csv": "now", "results/data.arrow": "now"}
    expected |= {"own/deep/part.py": "then", "own/gone/away.py": "then"}
    assert {name: (seen / name).read_text() for name in expected} == {name: f"{name} {when}" for name, when in expected.items()}
    assert (root / "mine.py").read_text() == "mine.py now"


def test_nothing_is_copied_if_nothing_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    write_text(tmp_path / "mine.py", "TOKEN = 'hf_0123456789'\n")
    write_text(tmp_path / "then.py", "TOKEN = '***'\n")
    assert with_own_code(tmp_path, {"mine.py": tmp_path / "then.py"}, tmp_path) == tmp_path


def test_changed_files_with_an_absolute_path_are_reported(tmp_path):
    for name in ("same.py", "changed.py", "gone.py"):
        write_text(tmp_path / "then" / name, name)
    write_text(tmp_path / "same.py", "same.py")
    write_text(tmp_path / "changed.py", "otherwise")
    own = {f"{tmp_path}/{name}": tmp_path / "then" / name for name in ("same.py", "changed.py", "gone.py")}
    reported = out_of_reach(tmp_path, own)
    assert len(reported) == 2 and f"{tmp_path}/changed.py was changed" in reported[0] and f"training/code{tmp_path}/gone.py" in reported[1]


def test_a_copy_without_its_password_is_not_put_in_the_place_of_a_changed_file(tmp_path):
    write_text(tmp_path / "mine.py", "KEY = 'another'\n")
    write_text(tmp_path / "then.py", "PASSWORD = '***'\n")
    own = {"mine.py": tmp_path / "then.py"}
    assert with_own_code(tmp_path, own, tmp_path) == tmp_path
    (reported,) = out_of_reach(tmp_path, own)
    assert "mine.py was changed" in reported and "without passwords" in reported


def test_a_setting_that_mlflow_does_not_have_must_be_given():
    settings = {"train": {"seed": 0, "task": {"arguments": {"password": "***"}}}}
    with pytest.raises(SystemExit, match="--settings"):
        written_out(settings, [])
    given = 'train.task.arguments.password="geheim"'
    assert written_out(settings, [given]) == {"train": {"seed": 0, "task": {"arguments": {"password": "geheim"}}}}


def test_uncommitted_changes_can_be_applied_whatever_the_configuration_of_git(tmp_path, monkeypatch):
    module = tmp_path / "project/a/b/c/d/module.py"
    monkeypatch.setattr(provenance, "__file__", str(module))
    monkeypatch.setattr(reproduce, "PROJECT", tmp_path / "project")
    for number, (key, value) in enumerate(
        {"diff.noprefix": "true", "color.ui": "always", "user.name": "x", "user.email": "x@example"}.items()
    ):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", key)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "4")
    write_text(module, "rate = 1\n")
    for words in (["init"], ["add", "."], ["commit", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path / "project"), *words], check=True, capture_output=True)
    write_text(module, "rate = 2\n")
    write_text(tmp_path / "code.diff", provenance.uncommitted_changes())
    (tmp_path / "then").mkdir()
    then = code_at(provenance.git_state()["commit"], tmp_path / "code.diff", tmp_path / "then")
    assert then and (then / "a/b/c/d/module.py").read_text() == "rate = 2\n"
