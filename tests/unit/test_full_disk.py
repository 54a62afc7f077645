"""A full disk is reported in one line, whichever error a library raises."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from snaketrain.runtime.file_systems import explained
from snaketrain.runtime.manifests import write_text


def caused_by(error: BaseException) -> BaseException:
    try:
        try:
            raise error
        except type(error):
            raise ValueError("writing failed")  # noqa: B904 - as libraries do
    except ValueError as other:
        return other


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "{folder}: cannot be written: the disk is full."),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "a/b.png"), "a/b.png: cannot be written: the disk quota is exceeded."),
        (shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")]), "{folder}: cannot be written: the disk is full."),
        (caused_by(OSError(errno.EFBIG, "File too large")), "{folder}: cannot be written: the file would exceed"),
    ],
    ids=["bare", "quota", "words only", "as a cause"],
)
def test_disk_errors_are_reported_with_the_path(tmp_path, error, message):
    found = explained(error, tmp_path)
    assert isinstance(found, SystemExit) and "\n" not in found.code
    assert found.code.startswith(message.format(folder=tmp_path)) and "run the same command again" in found.code


def test_an_error_that_does_not_mention_the_disk_is_explained_if_the_disk_is_full(tmp_path, monkeypatch):
    error = OSError("288 requested and 0 written")  # numpy
    assert explained(error, tmp_path) is error
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 100, 0))
    assert "the disk is full (288 requested and 0 written)" in explained(error, tmp_path).code
    other = KeyError("no error of the disk")
    assert explained(other, tmp_path) is other


@pytest.mark.parametrize("name", ["new/manifest.json", "there.json"])
def test_a_read_only_folder_is_reported_in_a_sentence(tmp_path, monkeypatch, name):
    """root may write everywhere, so the system's answer is replaced."""
    (tmp_path / "there.json").touch()
    error = caused_by(PermissionError(errno.EACCES, "Permission denied", str(tmp_path / name)))
    assert explained(error, tmp_path) is error, "there is another reason if it can be written"
    monkeypatch.setattr("os.access", lambda path, mode: mode == os.R_OK)
    found = explained(error, tmp_path)
    assert isinstance(found, SystemExit) and "\n" not in found.code
    assert found.code.startswith(f"{tmp_path / name}: cannot be written: you have no permission. Change the permissions of {tmp_path}")
    monkeypatch.setattr("os.access", lambda path, mode: name.startswith("new"))
    assert explained(error, tmp_path) is error, "a file that cannot be read"


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path, monkeypatch):
    write_text(tmp_path / "a.json", "before")
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_text(tmp_path / "a.json", "after")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"] and Path(tmp_path / "a.json").read_text() == "before"


SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*_*.py")), ids=lambda path: path.stem)
def test_all_stages_are_run_in_the_same_way(script):
    if script.stem != "torchrun_handlers":
        assert "stages.run(partial(main, args)" in script.read_text().splitlines()[-1]
