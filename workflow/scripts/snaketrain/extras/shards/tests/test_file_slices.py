"""Large files in slices: together they have the rows of the file, each with its line."""

import json
import random
from pathlib import Path

import pyarrow.parquet
import pytest

from snaketrain.config.schema import Data
from snaketrain.data import formats
from snaketrain.data.cells import BadData, DataIssues
from snaketrain.data.formats import WHOLE, FileSlice
from snaketrain.data.reading import rows
from snaketrain.extras.shards import dealing
from snaketrain.extras.shards.dealing import Shard, raw_files, slices
from snaketrain.runtime.manifests import Manifest

pytestmark = pytest.mark.lengthy


@pytest.fixture(autouse=True)
def of_a_hundred_bytes(monkeypatch):
    monkeypatch.setattr(dealing, "SLICE_BYTES", 100)
    monkeypatch.setattr(formats, "BLOCK", 64)


def data(**changes) -> Data:
    return Data.model_validate({"train": {"path": "x"}, "tokenizer": {"path": "x"}, "label": None} | changes)


def read(file: Path, file_slice: FileSlice, issues: DataIssues | None = None, **changes) -> list[tuple[int, object]]:
    found = rows([file], data(**changes), issues or DataIssues(), file.parent, file_slice=file_slice)
    return [(row.line, row.values["text"]) for row in found]


def json_lines(draw: random.Random) -> bytes:
    """Short and long ones, blank ones, and both kinds of line ends; the last line may have none."""
    lines = [json.dumps({"text": "é" * draw.choice([0, 1, 9, 300])}, ensure_ascii=False) if draw.random() < 0.8 else "" for _ in range(40)]
    return "".join(line + draw.choice(["\n", "\r\n"]) for line in lines).rstrip("\r\n" if draw.random() < 0.5 else "").encode()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_slices_have_the_rows_of_the_file_with_their_lines(tmp_path, seed, name):
    file = tmp_path / name
    file.write_bytes(json_lines(random.Random(seed)))
    found, whole = slices(file, data()), read(file, WHOLE)
    assert len(found) == -(-file.stat().st_size // 100) > 1
    assert [row for each in found for row in read(file, each)] == whole
    for total in (2, 7, file.stat().st_size + 3):  # also slices of a byte or none
        assert [row for number in range(total) for row in read(file, FileSlice(number, total))] == whole


@pytest.mark.parametrize("groups", [1, 3, 7])
def test_parquet_is_divided_between_row_groups(tmp_path, groups):
    file = tmp_path / "a.parquet"
    texts = [f"{number:030}" for number in range(42)]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), file, row_group_size=42 // groups, use_dictionary=False)
    found = slices(file, data())
    assert len(found) == min(groups, -(-file.stat().st_size // 100))
    assert [row for each in found for row in read(file, each)] == list(enumerate(texts, 1))


def test_what_is_wrong_in_a_slice_is_found_at_its_line(tmp_path):
    file, issues = tmp_path / "a.jsonl", DataIssues()
    lines = [json.dumps({"text": f"{number:050}"}).encode() + b"\n" for number in range(20)]
    file.write_bytes(b"".join(lines[:13]) + b'{"text": "\xff"}\n' + b"".join(lines[14:]))
    for each in slices(file, data()):
        read(file, each, issues)
    assert issues.examples["bad_encoding"] == ['a.jsonl, line 14: {"text": "\ufffd"}']
    file.write_bytes(b"".join(lines[:13]) + b"[1]\n" + b"".join(lines[14:]))
    with pytest.raises(BadData, match="a.jsonl, line 14: expected one JSON object per line"):
        [read(file, each) for each in slices(file, data())]


@pytest.mark.parametrize(
    ("name", "content", "changes"),
    [
        ("a.json", "\ufeff [" + ",\n".join(['{"text": "a film"}'] * 20) + "]", {}),
        ("a.csv", "text\n" + '"a\nb"\n' * 30, {}),
        ("a.jsonl.gz", "x" * 200, {}),
        ("a.txt", "a\n" * 200, {"text_unit": "paragraph"}),
        ("a.txt", "a\n" * 200, {"encoding": "utf-16"}),
        ("a.txt", "a\n" * 50, {}),
    ],
    ids=["array", "csv", "compressed", "paragraphs", "utf-16", "small"],
)
def test_other_files_are_not_divided(tmp_path, name, content, changes):
    (tmp_path / name).write_text(content)
    assert slices(tmp_path / name, data(**changes)) == [WHOLE]


def test_a_file_has_at_most_a_hundred_slices_which_are_dealt_among_the_shards(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train/large.txt").write_text("a film\n" * 2000)
    (tmp_path / "train/small.txt").write_text("a film\n")
    raw = Manifest(
        "", "", {}, {}, {f"train/{name}.txt": "x" for name in ("large", "small")}, {"files": {"train": ["large.txt", "small.txt"]}}
    )
    raw = Manifest(**vars(raw) | {"path": str(tmp_path / "manifest.json")})
    files = raw_files(raw, data())
    assert [file.title for file in files[:2]] == ["train/large.txt, slice 001 of 100", "train/large.txt, slice 002 of 100"]
    assert len(files) == 101 and files[-1].title == "train/small.txt"
    dealt = [Shard(number, 3).files(raw, data()) for number in range(3)]
    assert sorted(file for of_shard in dealt for file in of_shard) == sorted(files)
    assert [len(of_shard) for of_shard in dealt] == [34, 34, 33]
