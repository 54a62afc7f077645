"""Rows of raw files in every format, and the quick look at them before a run."""

import gzip
import json
import math

import pyarrow
import pyarrow.parquet
import pytest

from snaketrain.data.formats import BadData
from snaketrain.data.oddities import Oddities
from snaketrain.data.reading import as_text, check, rows
from snaketrain.settings import Data

TABLE = [{"text": "good film", "label": 1}, {"text": "bad, very bad", "label": 0}, {"text": "it\u2019s\nlong", "label": 1}]


def data(**changes) -> Data:
    return Data.model_validate({"train": {"path": "x"}, "tokenizer": {"path": "x"}} | changes)


def write(path, content, encoding="utf-8"):
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return path


def read(files, odd=None, **changes):
    files = files if isinstance(files, list) else [files]
    return [(row.line, row.values) for row in rows(files, data(**changes), odd or Oddities(), files[0].parent)]


def test_csv_with_quoted_newlines_names_the_line_where_a_row_begins(tmp_path):
    file = write(tmp_path / "a.csv", 'text,label\r\ngood film,1\r\n"bad, very bad",0\r\n"it\u2019s\nlong",1\r\nlast,0\r\n')
    assert read(file) == [
        (2, {"text": "good film", "label": "1"}),
        (3, {"text": "bad, very bad", "label": "0"}),
        (4, {"text": "it\u2019s\nlong", "label": "1"}),
        (6, {"text": "last", "label": "0"}),
    ]


def test_jsonl_and_parquet_hold_the_same(tmp_path):
    jsonl = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in TABLE))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(TABLE), tmp_path / "a.parquet")
    expected = list(enumerate(TABLE, 1))
    assert read(jsonl) == expected
    assert read(tmp_path / "a.parquet") == expected


def test_parquet_reads_the_needed_columns_only(tmp_path):
    table = pyarrow.Table.from_pylist([row | {"image": b"x", "source": "s"} for row in TABLE])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet")[0][1] == TABLE[0]
    assert read(tmp_path / "a.parquet", where={"source": "s"}, label=None)[0][1] == {"text": "good film", "source": "s"}


def test_headerless_tsv_with_stray_quotes_and_ragged_rows(tmp_path):
    file = write(tmp_path / "a.tsv", '"good film\t1\nit is "bad\t0\nno label\ntoo\t1\tmany\n\n')
    odd = Oddities()
    assert read(file, odd, columns=["text", "label"]) == [
        (1, {"text": '"good film', "label": "1"}),
        (2, {"text": 'it is "bad', "label": "0"}),
        (3, {"text": "no label"}),
        (4, {"text": "too", "label": "1"}),
    ]
    assert odd.counts == {"short_row": 1, "long_row": 1}
    assert odd.examples["long_row"] == ["a.tsv, line 4: too | 1 | many"]


def test_plain_text_is_one_example_a_line(tmp_path):
    assert read(write(tmp_path / "a.txt", "one\n two\n"), label=None) == [(1, {"text": "one"}), (2, {"text": " two"})]


def test_several_files_one_of_them_compressed_and_others_ignored(tmp_path):
    first = write(tmp_path / "a.csv", "text,label\na,1\n")
    second = write(tmp_path / "b.csv.gz", gzip.compress(b"label,text\n0,b\n"))
    readme = write(tmp_path / "README.md", "# about")
    assert [values["text"] for _, values in read([first, second, readme])] == ["a", "b"]
    with pytest.raises(BadData, match=r"data.format: cannot be told"):
        read(readme)


def test_where_compares_as_text(tmp_path):
    file = write(tmp_path / "a.jsonl", '{"text": "a", "fold": 1}\n{"text": "b", "fold": 2}\n{"text": "c", "fold": 1.0}\n{"text": "d"}\n')
    assert [line for line, _ in read(file, where={"fold": "1"})] == [1, 3]
    assert [as_text(value) for value in (None, math.nan, True, 2.0, 0.5, " x ")] == ["", "", "true", "2", "0.5", "x"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16", "shift_jis"])
def test_encodings(tmp_path, encoding):
    word = "映画" if encoding == "shift_jis" else "café"
    odd = Oddities()
    assert read(write(tmp_path / "a.csv", f"text,label\n{word},1\n", encoding), odd, encoding=encoding) == [
        (2, {"text": word, "label": "1"})
    ]
    assert not odd.counts


def test_a_line_in_another_encoding_is_named_replaced_and_passed(tmp_path):
    file = write(tmp_path / "a.csv", b"\xef\xbb\xbftext,label\ngood,1\ncaf\xe9,0\n\xc3\xa9t\xc3\xa9,1\n")
    odd = Oddities()
    assert [values["text"] for _, values in read(file, odd)] == ["good", "caf\ufffd", "été"]
    assert odd.counts == {"bad_encoding": 1}
    assert odd.examples["bad_encoding"][0].startswith("a.csv, line 3:")


# --- the check before a run


def problems(tmp_path, content, name="a.csv", split="train", **changes):
    return check(data(**changes), {split: [write(tmp_path / name, content)]})


GOOD = "text,label\na,0\nb,1\n"


def test_good_data_has_no_problems(tmp_path):
    assert problems(tmp_path, GOOD) == []
    assert problems(tmp_path, GOOD, labels={"0": "negative", "1": "positive"}) == []


@pytest.mark.parametrize(
    ("content", "name", "changes", "expected"),
    [
        (
            GOOD,
            "a.csv",
            {"label": "labell"},
            ["data.label: train file", "no column 'labell'", "It has: text, label.", "Did you mean 'label'?"],
        ),
        (GOOD, "a.csv", {"text": "sentence"}, ["data.text: train file", "no column 'sentence'"]),
        (GOOD, "a.csv", {"where": {"source": "x"}}, ["data.where: train file", "no column 'source'"]),
        (GOOD, "a.csv", {"where": {"label": "7"}}, ["data.where: no row of train has 'label' = '7'", "It has: 0, 1"]),
        (GOOD, "a.csv", {"labels": {"0": "negative", "2": "positive"}}, ["data.labels: train", "'1' (1 of 2 rows)", "'0', '2'"]),
        (GOOD, "a.csv", {"encoding": "utf-88"}, ["data.encoding", "'utf-88'"]),
        (GOOD, "a.csv", {"encoding": "rot13"}, ["data.encoding", "'rot13'"]),
        (GOOD, "a.csv", {"columns": ["text"]}, ["data.columns: names 1 columns", "has 2"]),
        ("text,label\na,1\nb,1\n", "a.csv", {}, ["data.label", "one class, '1'"]),
        ("text,label\na,\nb,\n", "a.csv", {}, ["data.label: no row of train has a value"]),
        ("text,label\n", "a.csv", {}, ["data.train: no rows in"]),
        ("", "a.csv", {}, ["data.train: no rows in"]),
        ("", "a.jsonl", {}, ["data.train: no rows in"]),
        ('{"text": "a", "label": 1}\n{"text": \n', "a.jsonl", {}, ["data.train", "a.jsonl, line 2: not JSON"]),
        ("[1]\n", "a.jsonl", {}, ["line 1", "JSON object"]),
        ("no parquet", "a.parquet", {}, ["a.parquet: not readable as Parquet"]),
        ("no gzip", "a.csv.gz", {}, ["a.csv.gz: cannot be read"]),
        ("a\nb\n", "a.txt", {}, ["data.label: train file", "`data.label: null`"]),
        (GOOD, "a.xls", {}, ["data.format: cannot be told"]),
        ('text,label\n"' + "x" * 2**24 + "\n", "a.csv", {}, ["beginning in line 2", "quote"]),
    ],
)
def test_problems_are_told_with_setting_and_place(tmp_path, content, name, changes, expected):
    found = problems(tmp_path, content, name, **changes)
    assert len(found) == 1
    assert all(part in found[0] for part in expected), found[0]


def test_a_test_set_may_come_without_labels(tmp_path):
    labels = {"0": "negative", "1": "positive"}
    assert problems(tmp_path, "text\na\n", split="test", labels=labels) == []
    assert problems(tmp_path, "text,label\na,-1\n", split="test", labels=labels) == []
    assert "data.labels: test" in problems(tmp_path, "text,label\na,good\n", split="test", labels=labels)[0]


def test_minus_one_is_a_class_where_the_training_data_say_so(tmp_path):
    assert problems(tmp_path, "text,label\na,-1\nb,1\n") == []


def test_a_long_file_is_not_read_through(tmp_path):
    # one class and nothing kept so far prove nothing when there is more
    content = "text,label\n" + "a,1\n" * 20_000 + "b,0\n" * 5
    assert problems(tmp_path, content) == []
    assert problems(tmp_path, content, where={"label": "0"}) == []
