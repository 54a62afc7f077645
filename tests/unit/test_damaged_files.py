"""Each damage to a file of each format: the right rows, or a message with the file, the place and what to do; never another exception."""

import codecs
import csv
import gzip
import io
import json
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData, DataIssues
from snaketrain.data.reading import rows
from snaketrain.data.surveying import check

ROWS = [{"text": f"film {n}, said “she”", "label": "no" if n % 2 else "yes"} for n in range(60)]
FORMATS = ["csv", "tsv", "jsonl", "json", "parquet"]
REMEDY = re.compile(
    r"Correct|Look for|Set |Put |Remove|remove|Write|Give|Convert|end each line|let its name|export|Is the file complete|Is it the right file"
)


def written(kind: str, content=None) -> bytes:
    content = ROWS if content is None else content
    if kind == "parquet":
        file = io.BytesIO()
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(content), file, row_group_size=20, compression="none", use_dictionary=False, write_statistics=False
        )
        return file.getvalue()
    if kind == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content).encode("utf-8", "surrogatepass")
    if kind == "json":
        return json.dumps(content, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")
    if kind == "tsv":
        return "".join("\t".join(row) + "\n" for row in [list(ROWS[0]), *(row.values() for row in content)]).encode()
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerows([list(ROWS[0]), *(row.values() for row in content)])
    return text.getvalue().encode()


def reread(content: bytes, encoding: str) -> bytes:
    return content.decode().encode(encoding)


def middle(content: bytes, inserted: bytes) -> bytes:
    """After a line in the middle."""
    at = content.index(b"\n", len(content) // 2) + 1
    return content[:at] + inserted + content[at:]


def flipped(content: bytes) -> bytes:
    """Bytes in the middle that are no UTF-8."""
    at = content.index(b"film 30")
    return content[:at] + b"\xff\xfe\x80" + content[at + 3 :]


TEXT_DAMAGE = {
    "utf-16": lambda content, kind: reread(content, "utf-16"),
    "utf-16-le": lambda content, kind: reread(content, "utf-16-le"),
    "utf-16-be": lambda content, kind: reread(content, "utf-16-be"),
    "utf-32": lambda content, kind: reread(content, "utf-32"),
    "utf-32-be": lambda content, kind: reread(content, "utf-32-be"),
    "utf-8 mark": lambda content, kind: codecs.BOM_UTF8 + content,
    "line ends": lambda content, kind: content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n", 9),
    "carriage returns": lambda content, kind: content.replace(b"\r\n", b"\n").replace(b"\n", b"\r"),
    "one carriage return": lambda content, kind: middle(content.replace(b"\r\n", b"\n"), b"a\tno\r" if kind == "tsv" else b"a,no\r"),
    "zero bytes": lambda content, kind: middle(content, b"\0" * 50),
    "zeros at the end": lambda content, kind: content + b"\0" * 5000,
    "half a gzip": lambda content, kind: content,
    "binary in a text": lambda content, kind: middle(content, bytes(range(256))),
    "open quote": lambda content, kind: middle(content, b'"never closed,no\n'),
    "a list": lambda content, kind: middle(content, b'["a", "b"],\n'),
    "a long number": lambda content, kind: middle(content, b'{"text": "a", "label": ' + b"9" * 5000 + b"},\n"),
    "a large number": lambda content, kind: middle(content, b'{"text": "a", "label": ' + b"9" * 4000 + b"}\n"),
    "deep": lambda content, kind: middle(content, b"[" * 100_000 + b"\n"),
    "a lone surrogate": lambda content, kind: middle(content, b'{"text": "\\ud800", "label": "\\udfff"}\n'),
    "a long field": lambda content, kind: middle(content, b'"' + b"x" * (2**24 + 10) + b'",no\n'),
    "names twice": lambda content, kind: content.replace(b"label", b"text", 1),
}
DAMAGE = {
    "truncated": lambda content, kind: content[: len(content) * 2 // 3],
    "cut at the start": lambda content, kind: content[len(content) // 3 :],
    "flipped": lambda content, kind: flipped(content),
    "empty": lambda content, kind: b"",
    "no row": lambda content, kind: written(kind, []),
    "compressed": lambda content, kind: gzip.compress(content),
    "zipped": lambda content, kind: b"PK\x03\x04\x14\0\0\0\x08\0" + content,
    "another format": lambda content, kind: written("csv" if kind == "parquet" else "parquet"),
    "noise": lambda content, kind: bytes((7 * n * n + 31 * n) % 256 for n in range(5000)),
}  # fmt: skip


def data(**changes) -> Data:
    return Data.model_validate({"train": {"path": "x"}, "tokenizer": {"path": "x"}} | changes)


def outcome(file: Path, reading: Data) -> tuple[list[dict], DataIssues] | str:
    issues = DataIssues()
    try:
        return [row.values for row in rows([file], reading, issues, file.parent)], issues
    except BadData as error:
        return str(error)


def cases() -> list[tuple[str, str]]:
    return [(kind, name) for kind in FORMATS for name in (DAMAGE if kind == "parquet" else DAMAGE | TEXT_DAMAGE)]


@pytest.mark.parametrize(("kind", "damage"), cases())
def test_a_damaged_file_gives_the_right_rows_or_a_message(tmp_path, kind, damage):
    content = (DAMAGE | TEXT_DAMAGE)[damage](written(kind), kind)
    file = tmp_path / f"a.{kind}"
    if damage == "half a gzip":
        file, content = tmp_path / f"a.{kind}.gz", gzip.compress(content, mtime=0)[:-40]
    file.write_bytes(content)
    found, checked = outcome(file, data()), check(data(), {"train": [file]})
    if isinstance(found, str):
        assert file.name in found and REMEDY.search(found), found
        assert "Traceback" not in found and len(found) < 700
        if damage in ("utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-be", "compressed", "zipped"):
            assert {"compressed": "gzip", "zipped": "spreadsheet"}.get(damage, damage) in found or kind == "parquet", found
        elif (
            damage not in ("another format", "noise", "carriage returns", "names twice", "empty") and "not readable as Parquet" not in found
        ):
            assert re.search(r"lines? \d+|row \d+", found), found
        assert checked, "it is found before any job"
        return
    values, issues = found
    kept = [row for row in values if row in ROWS]
    extra, lost = len(values) - len(kept), len(ROWS) - len(kept)
    assert checked or values
    told = sum(issues.counts.values())
    if damage == "cut at the start":
        assert checked or told, "the header is a row of the file, so its columns are missing"
    elif damage in ("utf-8 mark", "line ends"):
        assert values == ROWS and not told
    elif damage == "truncated":  # at a line's end nothing shows that lines are missing
        assert kind in ("csv", "tsv") and extra <= 1
    elif damage == "empty" or damage == "no row":
        assert not values and issues.counts == {"empty_file": 1}
    else:
        assert (
            extra + lost == 0
            or told
            or checked
            or damage in ("a list", "a large number", "a long number", "a lone surrogate", "deep", "a long field", "open quote")
        ), (damage, extra, lost)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252", "shift_jis"])
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json"])
def test_a_file_in_utf_8_is_called_so_where_the_settings_say_otherwise(tmp_path, kind, encoding):
    file = tmp_path / f"a.{kind}"
    file.write_bytes(written(kind))
    with pytest.raises(BadData, match=f"a.{kind}: this is UTF-8, not {encoding}. Set `data.encoding: utf-8`"):
        list(rows([file], data(encoding=encoding), DataIssues(), tmp_path))


def test_a_quoted_field_may_end_with_a_line_break(tmp_path):
    """As in the published banking77."""
    given = [{"text": f"Where is {n}, please?" + "\n" * (n % 3), "label": "a" if n % 2 else "b"} for n in range(30)]
    (tmp_path / "a.csv").write_bytes(written("csv", given))
    values, issues = outcome(tmp_path / "a.csv", data())
    assert values == given and not issues.counts and check(data(), {"train": [tmp_path / "a.csv"]}) == []


@pytest.mark.parametrize("place", [0, 25, 59])
def test_a_parquet_value_that_cannot_be_read_names_its_row_group(tmp_path, place):
    content = written("parquet")
    at = content.rindex(b"film %d," % place, 0, content.index(b"ARROW") if b"ARROW" in content else len(content))
    (tmp_path / "a.parquet").write_bytes(content[:at] + b"\xff" + content[at + 1 :])
    found = outcome(tmp_path / "a.parquet", data())
    assert isinstance(found, str) and f"a.parquet, row group {place // 20}, after row {place // 20 * 20}: not readable" in found


def test_whatever_a_library_raises_names_the_file_and_the_row(tmp_path, monkeypatch):
    def breaks(lines, name, first=1):
        yield 1, ROWS[0]
        raise ZeroDivisionError("by a library")

    monkeypatch.setattr("snaketrain.data.formats.json_rows", breaks)
    (tmp_path / "a.jsonl").write_bytes(written("jsonl"))
    assert outcome(tmp_path / "a.jsonl", data()).startswith(
        "a.jsonl, after line 1: cannot be read (ZeroDivisionError: by a library). Correct"
    )


@pytest.mark.parametrize("kind", ["class", "number", "classes"])
@pytest.mark.parametrize("value", ["\udfff", 10**4000, -(10**400), 1e999, "9" * 5000, "nan", "\0", [["a"]]])
def test_a_cell_of_any_value_is_a_label_or_a_message(tmp_path, prepared, kind, value):
    content = "".join(json.dumps(row) + "\n" for row in [{"text": f"a {n}", "label": n % 3} for n in range(40)])
    content += json.dumps({"text": "last", "label": value}) + "\n"
    try:
        _, facts, issues = prepared(content, ending="jsonl", label_kind=kind)
    except BadData as error:
        assert "train.jsonl, line 41" in str(error) or "data.label" in str(error), str(error)
        return
    assert facts["rows"] == {"train": 41}
    json.dumps(facts, allow_nan=False).encode()
    json.dumps(issues.report(), ensure_ascii=False).encode()
