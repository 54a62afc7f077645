"""Files that differ from their manifest are detected, and digests are computed once."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from snaketrain.config.schema import Source
from snaketrain.orchestration import own_files
from snaketrain.runtime import manifests, stages
from snaketrain.runtime.manifests import (
    DigestCache,
    Manifest,
    damage,
    digests,
    file_digest,
    read_manifest,
    read_result,
    stamp,
    verify,
    write_manifest,
    write_text,
)
from snaketrain.runtime.run_folder import move_damaged_checkpoints

LONG_AGO = time.time() - 1000


@pytest.fixture
def reads(monkeypatch):
    """The names of the files that are read for their digests."""
    names = []

    def digest(path):
        names.append(Path(path).name)
        return file_digest(path)

    monkeypatch.setattr(manifests, "file_digest", digest)
    return names


def made(folder: Path, *names: str) -> Manifest:
    """The manifest of files that a stage has made."""
    for name in names:
        write_text(folder / name, f"this is {name}")
        os.utime(folder / name, (LONG_AGO, LONG_AGO))
    write_manifest(folder / "manifest.json", Manifest("prepare_data", "1", {}, {}, digests(folder, names)))
    return read_manifest(folder / "manifest.json")


def overwrite(path: Path, text: str, seconds: float = LONG_AGO) -> None:
    """Without changing the size, and with any modification time."""
    assert len(text) == path.stat().st_size
    with open(path, "r+") as file:
        file.write(text)
    os.utime(path, (seconds, seconds))


def test_files_just_written_are_not_read_again(tmp_path, reads):
    manifest = made(tmp_path, "a.arrow", "model/b.safetensors")
    assert sorted(reads) == ["a.arrow", "b.safetensors"]
    assert damage(manifest) == {} == damage(manifest)
    os.utime(tmp_path / "a.arrow")  # touched
    assert damage(manifest) == {}
    assert sorted(reads) == ["a.arrow", "a.arrow", "b.safetensors"]


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: os.truncate(path, 3), "is not what was written"),
        (lambda path: overwrite(path, "this is A.arrow"), "is not what was written"),  # of the same size and time
    ],
    ids=["deleted", "truncated", "overwritten"],
)
def test_a_reader_exits_with_the_file_and_the_stage_to_rerun(tmp_path, harm, what):
    manifest = made(tmp_path, "a.arrow", "b.arrow")
    harm(tmp_path / "a.arrow")
    assert damage(manifest) == {"a.arrow": what}
    with pytest.raises(SystemExit, match=f"^{tmp_path}/a.arrow: {what}. .*prepare_data"):
        verify(manifest)
    verify(manifest, wanted=lambda name: name.startswith("b"))  # what it does not read may be damaged


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"examples": 500', '"examples": 501'),
        ('"data": "1234"', '"data": "1235"'),
        ('"rate": 0.001', '"rate": 0.002'),
        ("null", "0"),
        ("}\n", ""),
    ],
    ids=["facts", "inputs", "settings", "checkpoints", "truncated"],
)
def test_an_edited_manifest_is_refused(tmp_path, old, new):
    facts = {"examples": 500, "checkpoints": {"7": None}}
    write_manifest(tmp_path / "manifest.json", Manifest("train_model", "1", {"train": {"rate": 0.001}}, {"data": "1234"}, {}, facts))
    assert read_manifest(tmp_path / "manifest.json").facts == facts
    text = (tmp_path / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(text[: text.rindex(old)] + text[text.rindex(old) :].replace(old, new, 1))
    with pytest.raises(SystemExit, match=rf"^{tmp_path}/manifest.json: not a readable manifest"):
        read_manifest(tmp_path / "manifest.json")


def test_a_manifest_without_a_checksum_is_refused(tmp_path):
    made(tmp_path, "a.arrow")
    content = json.loads((tmp_path / "manifest.json").read_text())
    del content["checksum"]
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(SystemExit, match="it has no checksum"):
        read_manifest(tmp_path / "manifest.json")


def test_an_edited_cache_hides_no_damage(tmp_path, capsys):
    """As if a file and its entry were changed together."""
    manifest = made(tmp_path, "a.arrow")
    overwrite(tmp_path / "a.arrow", "this is A.arrow")
    cache = manifests.digest_cache(tmp_path)
    before, after = (json.dumps(each) for each in (cache.found["a.arrow"][0], stamp((tmp_path / "a.arrow").stat())))
    edited(tmp_path / ".digests.json", before, after)
    assert damage(manifest) == {"a.arrow": "is not what was written"}
    assert f"warning: {tmp_path}/.digests.json: cannot be used" in capsys.readouterr().err
    assert damage(manifest) == {"a.arrow": "is not what was written"} and not capsys.readouterr().err, "it is written again"


def test_a_result_is_read_only_as_it_was_written(tmp_path):
    manifest = made(tmp_path, "a.json")
    with pytest.raises(SystemExit, match=rf"^{tmp_path}/b.json: .*prepare_data"):
        read_result(manifest, "b.json")
    write_text(tmp_path / "a.json", '{"accuracy": 0.5}')
    with pytest.raises(SystemExit, match=rf"^{tmp_path}/a.json: is not what was written"):
        read_result(manifest, "a.json")
    assert read_result(replace(manifest, files=digests(tmp_path, ["a.json"])), "a.json") == {"accuracy": 0.5}


@pytest.fixture
def raw(tmp_path, monkeypatch):
    """A file so large that Snakemake does not digest it."""
    monkeypatch.chdir(tmp_path)
    own_files.own_digests.cache_clear()
    Path("raw.txt").write_bytes(b"a" * 1_500_000)
    os.utime("raw.txt", (LONG_AGO, LONG_AGO))
    yield Path("raw.txt")
    own_files.own_digests.cache_clear()


def content() -> str:
    """As another start finds it."""
    own_files.own_digests.cache_clear()
    return own_files.content(Source(path="raw.txt"))


def test_a_linked_file_is_not_read_again_for_its_digest(raw, reads, tmp_path):
    before = content()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/raw.txt").symlink_to(raw.absolute())
    assert f"raw.txt sha256 {digests(tmp_path / 'linked', ['raw.txt'])['raw.txt']}" == before
    assert reads == ["raw.txt"]
    overwrite(raw, "b" + "a" * 1_499_999)
    assert f"raw.txt sha256 {digests(tmp_path / 'linked', ['raw.txt'])['raw.txt']}" == content() != before
    assert reads == ["raw.txt"] * 3, "once by each, since it was changed after the workflow started"


def test_a_raw_file_is_read_again_only_where_it_was_changed(raw, reads):
    before = content()
    assert content() == before and reads == ["raw.txt"]
    raw.touch()
    os.utime(raw, (LONG_AGO + 1, LONG_AGO + 1))
    assert content() == before and reads == ["raw.txt"] * 2
    overwrite(raw, "b" + "a" * 1_499_999, LONG_AGO - 1000)  # older than before
    assert content() != before and reads == ["raw.txt"] * 3
    changed = content()
    overwrite(raw, "c" + "a" * 1_499_999, LONG_AGO - 1000)  # size, time and inode as they were
    assert content() not in (before, changed)


def test_a_raw_file_beside_another_changes_the_content(raw):
    assert own_files.content(Source(path="*.txt")).startswith("raw.txt sha256 ")
    Path("second.txt").write_text("b")
    assert own_files.content(Source(path="*.txt")).startswith("2 files ")


def test_a_long_digest_reports_its_progress(raw, monkeypatch, capsys):
    monkeypatch.setattr(manifests, "SECONDS_BETWEEN_LINES", -1.0)
    manifests.file_digest(raw)
    assert "0.0 GB read" in capsys.readouterr().err


def test_a_training_is_repeated_from_before_the_first_damaged_checkpoint(tmp_path):
    folder = tmp_path / "training"
    made(folder, *(f"checkpoints/step-0000000{step}/model.safetensors" for step in (2, 4, 6)))
    (folder / "manifest.json").rename(folder / stages.MADE_BEFORE)  # Snakemake deletes it before it starts the stage
    move_damaged_checkpoints(folder)
    assert len(list(folder.glob("checkpoints/step-*"))) == 3  # nothing is wrong with them
    os.truncate(folder / "checkpoints/step-00000004/model.safetensors", 3)
    move_damaged_checkpoints(folder)
    assert [path.name for path in folder.glob("checkpoints/step-*")] == ["step-00000002"]
    assert len(list(tmp_path.glob("superseded/*/step-*"))) == 2
    write_text(folder / "checkpoints/step-00000004/model.safetensors", "of another machine, not equal to the bit")
    move_damaged_checkpoints(folder)  # stopped and started again: it resumes
    assert len(list(folder.glob("checkpoints/step-*"))) == 2


def test_a_digest_is_trusted_only_once_its_file_has_settled(tmp_path):
    """A file can change twice within the resolution of its timestamp, and keep its size."""
    file, cache = tmp_path / "a.csv", DigestCache(tmp_path / "kept.json", "1")
    file.write_text("x")
    assert cache.of(file, file_digest) and not cache.known(file)
    os.utime(file, (time.time() - 60, time.time() - 60))
    assert cache.of(file, file_digest) and cache.known(file)
    file.write_text("y")
    assert not cache.known(file)


@pytest.mark.parametrize("other", ['{"a": 1, "b": 2.50}', '{"a": 1, "b": 2.5, "b": 2.5}', '{"b": 2.5, "a": 1}', '{"a": 1, "b": 2.5'])
def test_of_a_tokenizer_only_the_layout_does_not_count(tmp_path, other):
    def found(text: str) -> str:
        (tmp_path / "tokenizer.json").write_text(text)
        return manifests.content_digest(tmp_path / "tokenizer.json")

    assert found('{"a": 1, "b": 2.5}') == found('{"a":1,\n "b": 2.5}\n')
    assert (found(other) == found('{"a": 1, "b": 2.5}')) == (other == '{"a": 1, "b": 2.50}'), "a number is a number"
