"""A user's own files are recorded with a training."""

from pathlib import Path

from snaketrain.runtime.manifests import write_text
from snaketrain.runtime.provenance import copy_of, own_files, write_provenance


def test_the_users_files_are_distinguished_from_modules():
    code = ["train_model", "snaketrain.data.tokens", "own/task.py", "/else/where.py"]
    assert own_files(code) == ["own/task.py", "/else/where.py"]


def test_the_users_files_are_kept_without_passwords(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere/loss.py"
    write_text("own/task.py", 'ADDRESS = "https://anna:geheim@data.example"\n')
    write_text(elsewhere, "def loss(): ...\n")
    write_text("training/code/gone.py", "of the attempt before")
    write_provenance(Path("training"), False, ["own/task.py", str(elsewhere)])
    assert Path("training/code/own/task.py").read_text() == 'ADDRESS = "https://***@data.example"\n'
    assert Path("training", copy_of(str(elsewhere))).read_text() == "def loss(): ...\n"
    assert not Path("training/code/gone.py").exists()
