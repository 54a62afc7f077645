"""Rows of raw files in every format, and their check before a run."""

import gzip
import json
import math
import re
from decimal import Decimal

import pyarrow
import pyarrow.parquet
import pytest

from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData, DataIssues
from snaketrain.data.reading import report_unread, rows
from snaketrain.data.surveying import check
from snaketrain.data.tables import records, table
from snaketrain.labels.base import as_text

TABLE = [{"text": "good film", "label": 1}, {"text": "bad, very bad", "label": 0}, {"text": "it\u2019s\nlong", "label": 1}]


def data(**changes) -> Data:
    return Data.model_validate({"train": {"path": "x"}, "tokenizer": {"path": "x"}} | changes)


def write(path, content, encoding="utf-8"):
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return path


def read(files, issues=None, **changes):
    files = files if isinstance(files, list) else [files]
    return [(row.line, row.values) for row in rows(files, data(**changes), issues or DataIssues(), files[0].parent)]


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
    file = write(tmp_path / "a.tsv", '"good film\t1\nit is "bad\t0\nno label\ntoo\t1\tmany\n\n' + "more\t0\n" * 100)
    issues = DataIssues()
    found = read(file, issues, columns=["text", "label"])
    assert found[:3] == [(1, {"text": '"good film', "label": "1"}), (2, {"text": 'it is "bad', "label": "0"}), (3, {"text": "no label"})]
    assert [line for line, _ in found[3:]] == list(range(6, 106)), "a row with too many fields is dropped"
    assert issues.counts == {"short_row": 1, "long_row": 1}
    assert issues.examples["long_row"] == ["a.tsv, line 4: too | 1 | many"]


def test_plain_text_is_one_example_a_line(tmp_path):
    assert read(write(tmp_path / "a.txt", "one\n two\n"), label=None) == [(1, {"text": "one"}), (2, {"text": " two"})]


def test_several_files_one_of_them_compressed_and_others_ignored(tmp_path):
    first = write(tmp_path / "a.csv", "text,label\na,1\n")
    second = write(tmp_path / "b.csv.gz", gzip.compress(b"label,text\n0,b\n"))
    readme = write(tmp_path / "README.md", "# about")
    assert [values["text"] for _, values in read([first, second, readme])] == ["a", "b"]
    with pytest.raises(BadData, match=r"data.format: cannot be inferred"):
        read(readme)


def test_a_file_in_another_compression_is_refused_rather_than_passed_over(tmp_path, capsys):
    first = write(tmp_path / "a.jsonl", '{"text": "a"}\n')
    for name in ("b.jsonl.xz", "c.JSON.BZ2", "d.csv.zip"):
        second = write(tmp_path / name, b"\x00")
        with pytest.raises(BadData, match=f"{name}: {second.suffix} is not read. Compress the file as .gz or .zst instead"):
            read([first, second])
        assert f"data.train: {name}" in check(data(), {"train": [first, second]})[0]
    with pytest.raises(BadData, match="notes.xz: .xz is not read"):
        read(write(tmp_path / "notes.xz", b"\x00"), format="text")
    others = [write(tmp_path / name, b"\x00") for name in ("images.zip", "README.md", "a.jsonl\n.bak")]
    assert len(read([first, *others])) == 1
    report_unread([first, *others], data(), "data.train")
    told = (
        "data.train: 3 of 4 files are not read, since their names do not tell a known format: 'images.zip', 'README.md', 'a.jsonl\\n.bak'\n"
    )
    assert capsys.readouterr().out == told
    report_unread([first], data(), "data.train")
    report_unread(others, data(format="text"), "data.train")
    assert capsys.readouterr().out == ""


def zstandard(content: bytes) -> bytes:
    return pyarrow.Codec("zstd").compress(content, asbytes=True)


def test_zstandard_in_every_text_format(tmp_path):
    whole = zstandard(b"text,label\na,1\n") + zstandard(b"b,0\n")  # of two frames, as `cat a.zst b.zst` makes it
    assert read(write(tmp_path / "a.csv.zst", whole)) == [(2, {"text": "a", "label": "1"}), (3, {"text": "b", "label": "0"})]
    assert read(write(tmp_path / "a.jsonl.zst", zstandard(b'{"text": "a"}\n'))) == [(1, {"text": "a"})]
    utf16 = zstandard("text\tlabel\ncaf\u00e9\t1\n".encode("utf-16"))
    assert read(write(tmp_path / "b.tsv.zst", utf16), encoding="utf-16") == [(2, {"text": "caf\u00e9", "label": "1"})]
    for name, content in (("cut_off", whole[:-3]), ("other", b"no zstandard")):
        with pytest.raises(BadData, match=f"{name}.csv.zst: cannot be read"):
            read(write(tmp_path / f"{name}.csv.zst", content))


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("at_once", [1, 7, 2**16])
def test_a_json_array_holds_what_lines_hold(tmp_path, monkeypatch, indent, at_once):
    monkeypatch.setattr("snaketrain.data.tables.CHARACTERS", at_once)
    rows_of_array = [*TABLE, {"text": 'a "] , { b', "label": [1, {"c": None}]}]
    text = "\n " + json.dumps(rows_of_array, indent=indent) + "\n\n"
    found = read(write(tmp_path / "a.json", text))
    assert [values for _, values in found] == rows_of_array
    lines = text.splitlines()
    assert all(lines[line - 1].lstrip().startswith(("{", "[")) for line, _ in found)
    assert [line for line, _ in found][:2] == ([2, 2] if indent is None else [3, 7])
    assert read(write(tmp_path / "b.json.gz", gzip.compress(text.encode()))) == found
    assert read(write(tmp_path / "empty.json", " [\n ] ")) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "a"},\n{"text": "b"', "a.json, line 2: not JSON"),
        ('[{"text": "a"},\n{"text": "b"}', "a.json, line 2: expected ',' in an array of objects, not ''. Is the file complete?"),
        ('[{"text": "a"}\n\n{"text": "b"}]', "a.json, line 3: expected ',' in an array of objects, not '{'"),
        ('[{"text": "a"},\n3]', "a.json, line 2: expected a JSON object in the array, not '3'"),
        ('[{"text": "a"},\n{"text": "b", "text": "c"}]', "a.json, line 2: not JSON (it has 'text' twice)"),
        ('[{"text": "a"}]\n[{"text": "b"}]', 'a.json, line 2: \'[{"text": "b"}]\' follows the end of the array'),
    ],
)
def test_a_damaged_json_array_is_refused_with_its_line(tmp_path, content, message):
    with pytest.raises(BadData, match=re.escape(message)):
        read(write(tmp_path / "a.json", content))


def test_where_compares_as_text(tmp_path):
    file = write(tmp_path / "a.jsonl", '{"text": "a", "fold": 1}\n{"text": "b", "fold": 2}\n{"text": "c", "fold": 1.0}\n{"text": "d"}\n')
    assert [line for line, _ in read(file, where={"fold": "1"})] == [1, 3]
    assert [as_text(value) for value in (None, math.nan, True, 2.0, 0.5, " x ")] == ["", "", "true", "2", "0.5", "x"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16", "shift_jis"])
def test_encodings(tmp_path, encoding):
    word = "映画" if encoding == "shift_jis" else "café"
    issues = DataIssues()
    assert read(write(tmp_path / "a.csv", f"text,label\n{word},1\n", encoding), issues, encoding=encoding) == [
        (2, {"text": word, "label": "1"})
    ]
    assert not issues.counts


def test_a_line_in_another_encoding_is_named_replaced_and_passed(tmp_path):
    file = write(tmp_path / "a.csv", b"\xef\xbb\xbftext,label\ngood,1\ncaf\xe9,0\n\xc3\xa9t\xc3\xa9,1\n")
    issues = DataIssues()
    assert [values["text"] for _, values in read(file, issues)] == ["good", "caf\ufffd", "été"]
    assert issues.counts == {"bad_encoding": 1}
    assert issues.examples["bad_encoding"][0].startswith("a.csv, line 3:")


def many(*bad_lines: str, header: str = "text,label\n") -> str:
    """Two hundred rows of a CSV file, the bad ones from the 50th on."""
    lines = [f"film {n},{n % 2}\n" for n in range(200)]
    lines[49 : 49 + len(bad_lines)] = bad_lines
    return header + "".join(lines)


@pytest.mark.parametrize(
    "stray", ['"great film,1\n', '"great" film,1\n', 'great film,"1\n', '"he said "no",0\n'], ids=["open", "closed early", "label", "inner"]
)
def test_a_stray_quote_hides_no_rows(tmp_path, stray):
    """Otherwise the field would extend to the next quote or the end of the file, and the rows in between would be lost."""
    file = write(tmp_path / "a.csv", many(stray))
    with pytest.raises(BadData, match="a.csv, row beginning in line 51: not readable as CSV .*stray or missing quote"):
        read(file)


def test_two_stray_quotes_are_reported(tmp_path):
    swallowed = ['"great film,1\n', *(f"film {n},{n % 2}\n" for n in range(5)), 'the end",0\n']
    whole = '"Well, it\nwas, in all, good\n\nreally",1\n"one\ntwo",1\n'
    issues = DataIssues()
    assert len(read(write(tmp_path / "a.csv", many(*swallowed) + whole), issues)) == 200 - 7 + 1 + 2
    assert issues.counts == {"joined_rows": 1}
    assert issues.examples["joined_rows"][0].startswith("a.csv, lines 51 to 57: great film,1 film 0,0")


def test_a_row_with_too_many_fields_is_dropped_counted_and_more_are_an_error(tmp_path):
    issues = DataIssues()
    found = read(write(tmp_path / "a.csv", many("good, very good,1\n", "x,1,\n")), issues)
    assert len(found) == 198 and issues.counts == {"long_row": 2}
    assert issues.examples["long_row"] == ["a.csv, line 51: good |  very good | 1", "a.csv, line 52: x | 1 | "]
    with pytest.raises(BadData, match="a.csv, line 51: more fields than the 2 columns, as in 3 of 200 rows.*comma into quotes"):
        read(write(tmp_path / "a.csv", many("a,b,1\n", "a,b,0\n", "a,b,1\n")))
    lines = iter(["text,label\n", *("a,b,1\n" for _ in range(50)), "end"])
    with pytest.raises(BadData, match="as in 11 of 11 rows"):
        list(table(records("csv", lines, DataIssues(), "a.csv"), None, DataIssues(), "a.csv"))
    assert next(lines) == "a,b,1\n", "a long file is not read to its end first"


def test_two_stray_quotes_far_apart_are_an_error(tmp_path):
    swallowed = ['"great film,1\n', *(f"film {n},{n % 2}\n" for n in range(20)), 'the end",0\n']
    with pytest.raises(BadData, match="a.csv, lines 51 to 72: rows joined into one by quotes"):
        read(write(tmp_path / "a.csv", many(*swallowed)))
    legal = write(tmp_path / "b.csv", 'text,label\n"It was, I think,\n' + "good,\n" * 30 + 'and long",1\n')
    assert len(read(legal)) == 1


@pytest.mark.parametrize("header", ["text\tlabel\n", "Text\tclass\n", "sentence\tLABEL\n"])
def test_a_header_is_not_a_row(tmp_path, header):
    file = write(tmp_path / "a.tsv", header + "a\t0\nb\t1\n")
    with pytest.raises(BadData, match="data.columns: is for files without a header, but a.tsv, line 1 looks like one"):
        read(file, columns=["text", "label"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text,label,text\na,1,b\n"),
        ("a.tsv", "text\tlabel\ttext\na\t1\tb\n"),
        ("a.jsonl", '{"text": "a", "label": 1, "text": "b"}\n'),
        ("a.parquet", None),
    ],
)
def test_columns_of_one_name_are_refused(tmp_path, name, content):
    if content:
        write(tmp_path / name, content)
    else:
        table = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 3, names=["text", "label", "text"])
        pyarrow.parquet.write_table(table, tmp_path / name)
    with pytest.raises(BadData, match=rf"{name}.*(several columns are called 'text'|it has 'text' twice)"):
        read(tmp_path / name)
    (problem,) = check(data(), {"train": [tmp_path / name]})
    assert "'text'" in problem
    unnamed = write(tmp_path / "b.csv", "text,label,,\na,1,,\n")
    assert read(unnamed)[0][1]["text"] == "a"


NESTED = [({"a": 1}, "an object"), (["a", "b"], "a list"), (b"a", "bytes")]


@pytest.mark.parametrize(("value", "kind"), NESTED, ids=["object", "list", "bytes"])
@pytest.mark.parametrize("column", ["text", "label", "source"])
def test_nested_values_and_bytes_are_not_text(tmp_path, column, value, kind):
    rows = [{"text": f"film {n}", "label": str(n % 2), "source": "x"} for n in range(3)]
    columns = {name: [row[name] for row in rows] for name in rows[0]} | {column: [value] * 3}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    setting = "where" if column == "source" else column
    (problem,) = check(data(where={"source": "x"}), {"train": [tmp_path / "a.parquet"]})
    assert f"data.{setting}: " in problem and f"a.parquet, line 1 has in column {column!r} {kind}" in problem
    if column == "label":
        wanted = data(label_kind="classes")
        found = check(wanted, {"train": [tmp_path / "a.parquet"]})
        assert ("same classes" in found[0]) if isinstance(value, list) else (kind in found[0])


def test_one_and_one_point_nothing_are_one_label(tmp_path):
    for value in (1, 1.0, "1", "1.0", " 1.00 ", Decimal("1.0"), True + 0):
        assert as_text(value) == "1"
    assert [as_text(text) for text in ("1.5", "1.", ".0", "v1.0", "-1.0", "1.0.0", "0.0")] == [
        "1.5",
        "1.",
        ".0",
        "v1.0",
        "-1",
        "1.0.0",
        "0",
    ]
    given = data(labels={"1.0": "good", 0: "bad"}, where={"fold": 2.0})
    assert given.labels == {"1": "good", "0": "bad"} and given.where == {"fold": "2"}
    file = write(tmp_path / "a.csv", "text,label,fold\na,1.0,2\nb,0,2.0\nc,1,2\n")
    assert check(given, {"train": [file]}) == []
    with pytest.raises(ValueError, match="they are one label"):
        data(labels={"1": "good", "1.0": "bad"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": "label"}, "`text` and `label` name the same column"),
        ({"text": ["a", "b"], "label": "b"}, "`text` and `label` name the same column"),
        ({"text": ["a", "a"]}, "names 'a' more than once"),
        ({"columns": ["a", "b", "a"]}, "names 'a' more than once"),
        ({"text_unit": "file", "format": "csv"}, "`text_unit` is for plain text"),
        ({"columns": ["text", "label"], "format": "jsonl"}, "`columns` is for CSV and TSV, but `format` is jsonl"),
        ({"label_separator": ";"}, "`label_separator` is for `label_kind: classes`, but `label_kind` is class"),
        ({"fields": ["x", "y"]}, "`fields` names the elements of a dataset class's items, but the examples come from files"),
        ({"train": {"use": "mine.py:Mine"}}, "`tokenizer` is for files, but the examples come from a dataset class"),
        ({"train": {"use": "mine.py:Mine"}, "tokenizer": None, "where": {"fold": 1}}, "`where` is for files"),
    ],
)
def test_contradictory_columns_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        data(**changes)


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_plain_text_by_paragraphs_and_files(tmp_path, ends):
    text = ends.join(["", "def f():", "    return 1  ", "  ", "", "one", "two", ""])
    file = write(tmp_path / "a.txt", text)
    assert read(file, label=None, text_unit="paragraph") == [(2, {"text": "def f():\n    return 1  "}), (6, {"text": "one\ntwo"})]
    empty = write(tmp_path / "b.txt", "")
    assert read([file, empty], label=None, text_unit="file") == [(1, {"text": text.rstrip().replace("\r", "")})]
    assert "data.text_unit: is for plain text" in problems(tmp_path, GOOD, text_unit="file")[0]


def test_a_too_long_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("snaketrain.data.formats.LONGEST", 30)
    file = write(tmp_path / "a.txt", "one two three\n" * 3)
    for unit in ("paragraph", "file"):
        with pytest.raises(BadData, match="a.txt, line 1: a text of more than 30 characters"):
            read(file, label=None, text_unit=unit)
    assert len(read(file, label=None)) == 3


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
        (
            GOOD,
            "a.csv",
            {"labels": {"0": "negative", "2": "positive"}},
            ["data.labels: 1 of the 2 rows of train", "a.csv, line 3: '1' b", "'0', '2'"],
        ),
        (GOOD, "a.csv", {"encoding": "utf-88"}, ["data.encoding", "'utf-88'"]),
        (GOOD, "a.csv", {"encoding": "rot13"}, ["data.encoding", "'rot13'"]),
        ("a,0\nb,1\n", "a.csv", {"columns": ["text"]}, ["data.columns: names 1 columns", "a.csv, line 1 has 2"]),
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
        (GOOD, "a.xls", {}, ["data.format: cannot be inferred"]),
        ('text,label\n"' + "x" * 2**24 + "\n", "a.csv", {}, ["beginning in line 2", "quote"]),
    ],
)
def test_problems_are_reported_with_setting_and_location(tmp_path, content, name, changes, expected):
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
    # one class, or no row yet, proves nothing while there are more rows
    content = "text,label\n" + "a,1\n" * 20_000 + "b,0\n" * 5
    assert problems(tmp_path, content) == []
    assert problems(tmp_path, content, where={"label": "0"}) == []


@pytest.mark.parametrize(
    ("train", "test", "changes", "words"),
    [
        ("a,good\nb,bad\n", "a,good\nb,ugly\n", {}, ["line 3 is of class 'ugly', which no training row has", "'bad', 'good'"]),
        ("a,0\nb,1\n", "a,0\nb,2\n", {"labels": {"0": "no", "1": "yes"}}, ["data.labels: test", "not listed, '2'", "line 3"]),
        ("a,x|y\nb,x\n", "a,x\nb,x|z\n", {"label_kind": "classes"}, ["line 3 is of class 'z'"]),
    ],
)
def test_an_untrained_class_of_the_test_set_is_reported_before_a_run(tmp_path, train, test, changes, words):
    files = {split: [write(tmp_path / f"{split}.csv", "text,label\n" + rows)] for split, rows in (("test", test), ("train", train))}
    (problem,) = check(data(**changes), files)
    assert all(word in problem for word in words), problem
