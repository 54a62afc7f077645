"""What is found in a folder or by a pattern: each entry is read, left out for a reason that is told, or refused."""

import os
import random
import socket
from pathlib import Path

import pytest

from snaketrain.config.schema import Source
from snaketrain.data.fetching import fetch, local_files, report
from snaketrain.data.locations import COMPILED, FOLDER, HIDDEN, OTHER_CASE, READ_ELSEWHERE, find


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text\nx\n")


@pytest.fixture
def raw(tmp_path):
    put(tmp_path / "raw", "a.csv", "deep/b.csv")
    put(tmp_path / "elsewhere", "c.csv", "more/d.csv")
    return tmp_path / "raw"


def found(path, kind="files"):
    return dict(getattr(local_files(Source(path=str(path))), kind))


def test_files_behind_links_are_read(raw, tmp_path):
    (raw / "linked").symlink_to(tmp_path / "elsewhere")
    (raw / "e.csv").symlink_to(tmp_path / "elsewhere/c.csv")
    every = ["a.csv", "deep/b.csv", "e.csv", "linked/c.csv", "linked/more/d.csv"]
    for path in (raw, raw / "**/*.csv", raw / "**"):
        assert list(found(path)) == every, path
    assert list(found(raw / "*/*.csv")) == ["deep/b.csv", "linked/c.csv"]
    (tmp_path / "again").symlink_to(raw)
    assert list(found(tmp_path / "again")) == every
    assert [*fetch(Source(path=str(raw)), tmp_path / "files").files] == sorted(every)
    assert (tmp_path / "files/linked/more/d.csv").read_text() == "text\nx\n"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda raw: (raw / "x.csv").symlink_to(raw / "gone"), r"'x.csv': a link to /.*/gone, which does not exist"),
        (lambda raw: (raw / "deep/x").symlink_to("../gone.csv"), r"'deep/x': a link to ../gone.csv, which does not exist"),
        (lambda raw: (raw / "x.csv").symlink_to(raw / "x.csv"), r"'x.csv': a link that leads back to itself"),
        (lambda raw: (raw / "deep/x").symlink_to("../.."), r"'deep/x': a link to /.*, which contains the folder that is read"),
        (lambda raw: put(raw, os.fsdecode(b"\xff.csv")), r"'\\udcff.csv': a name that is not UTF-8"),
    ],
)
@pytest.mark.parametrize("path", ["", "**/*"])
def test_what_cannot_be_read_is_refused_by_name(raw, make, problem, path):
    make(raw)
    with pytest.raises(ValueError, match=rf"path '.*': 1 cannot be read: {problem}. Repair or remove each"):
        found(raw / path)
    assert list(found(raw / "a*.csv")) == ["a.csv"], "a pattern that leaves it out"


def test_without_permission_nothing_is_passed_over(raw, monkeypatch):
    """root may read everything, so the system's answers are replaced."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "b.csv")
    with pytest.raises(ValueError, match="'deep/b.csv': you have no permission to read it"):
        found(raw)

    def closed(folder):
        if Path(folder).name == "deep":
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.undo()
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(ValueError, match="'deep': a folder that cannot be listed: Permission denied"):
        found(raw)


def test_what_is_left_out_has_a_reason(raw, tmp_path, capsys):
    put(raw, ".h.csv", ".git/x.csv", "__pycache__/y.csv", "A2.CSV", "deep/__pycache__/z.csv")
    os.mkfifo(raw / "p.csv")
    (raw / "latest").symlink_to("deep")
    (raw / "loop").symlink_to(".")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(raw / "s.csv"))
    everywhere = {".h.csv": HIDDEN, "__pycache__": COMPILED, "deep/__pycache__": COMPILED, ".git": HIDDEN}
    links, special = {"latest": READ_ELSEWHERE, "loop": READ_ELSEWHERE}, {"p.csv": "a pipe, not a file", "s.csv": "a socket, not a file"}
    assert found(raw, "left_out") == everywhere | links | special
    assert found(raw / "**/*.csv", "left_out") == everywhere | links | special | {"A2.CSV": OTHER_CASE}
    assert found(raw / "*.csv", "left_out") == {".h.csv": HIDDEN, "A2.CSV": OTHER_CASE} | special
    assert found(raw / "l*/*.csv", "left_out") == {"loop": READ_ELSEWHERE} and list(found(raw / "l*/*.csv")) == ["latest/b.csv"]
    assert found(raw / "*", "left_out")["deep"] == FOLDER
    assert list(found(raw / ".git/*.csv")) == ["x.csv"] and list(found(raw / ".g*/*.csv")) == [".git/x.csv"]

    fetched = fetch(Source(path=str(raw)), tmp_path / "files")
    assert fetched.facts() == {"left_out": {HIDDEN: 2, COMPILED: 2, READ_ELSEWHERE: 2, "a pipe, not a file": 1, "a socket, not a file": 1}}
    report(fetched, "fetch_data: train", Source(path=str(raw)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"fetch_data: train: 3 files of path '{raw}'"
    assert f"  2 left out: '.git', '.h.csv': {HIDDEN}" in lines and "  1 left out: 'p.csv': a pipe, not a file" in lines


def test_a_link_into_a_hidden_folder_is_read(tmp_path):
    """As data that is kept in versions is laid out."""
    put(tmp_path, "raw/.versions/3/a.csv")
    (tmp_path / "raw/current").symlink_to(".versions/3")
    assert list(found(tmp_path / "raw")) == ["current/a.csv"]


@pytest.mark.parametrize(("path", "words"), [("p", "'p': a pipe, not a file"), ("l", "'l': a link to nowhere, which does not exist")])
def test_a_path_that_is_no_file_is_called_what_it_is(tmp_path, path, words):
    os.mkfifo(tmp_path / "p")
    (tmp_path / "l").symlink_to("nowhere")
    with pytest.raises(ValueError, match=words):
        found(tmp_path / path)


def test_nothing_but_what_is_left_out(tmp_path):
    put(tmp_path, ".a.csv", "B.CSV")
    with pytest.raises(ValueError, match=f"no file there .*1 left out: '.a.csv': {HIDDEN}; 1 left out: 'B.CSV': {OTHER_CASE}"):
        found(tmp_path / "*.csv")


def grow(folder: Path, drawn: random.Random, depth: int = 0) -> None:
    folder.mkdir()
    for number in range(drawn.randint(0, 6)):
        path = folder / f"{drawn.choice(['', '.', 'É', ' ', chr(10)])}{number}{drawn.choice(['', '.csv', '.CSV'])}"
        what = drawn.randrange(7 if depth < 3 else 4)
        if what == 0:
            os.mkfifo(path)
        elif what == 1:
            path.symlink_to(drawn.choice([".", "..", "0", "1.csv", "../0", "../../1", "gone"]))
        elif what < 4:
            path.write_text("x")
        else:
            grow(path, drawn, depth + 1)


@pytest.mark.parametrize("seed", range(60))
def test_every_entry_of_a_random_folder_is_accounted_for(tmp_path, seed):
    grow(tmp_path / "raw", random.Random(seed))
    outcome = find(tmp_path / "raw")
    files, left_out, refused = map(set, (outcome.files, outcome.left_out, outcome.refused))
    assert not (files & left_out or files & refused or left_out & refused)
    for folder, folders, names in os.walk(tmp_path / "raw"):
        for name in [*folders, *names]:
            path = Path(folder, name)
            entry = str(path.relative_to(tmp_path / "raw"))
            above = {str(each) for each in (Path(entry), *Path(entry).parents)}
            of_folder = path.is_dir() and (
                not path.is_symlink() or any(each.startswith(f"{entry}/") for each in files | left_out | refused)
            )
            accounted = above & (left_out | refused) or entry in files or of_folder or not list(os.scandir(path))
            assert accounted, entry
    assert all(path.is_file() for path in outcome.files.values())
    real = [os.path.realpath(path.parent) + path.name for path in outcome.files.values()]
    assert len(real) == len(set(real)), "no folder is read twice"
