"""Labels that are several classes or a number: in raw files, in prepared data and in batches."""

import json
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from snaketrain.config.schema import Data
from snaketrain.data import surveying
from snaketrain.data.cells import BadData, DataIssues
from snaketrain.data.loading.examples import TextExamples
from snaketrain.data.reading import rows
from snaketrain.data.surveying import check
from snaketrain.labels import label_kind
from snaketrain.labels.base import Tally

WHOLE = {"dev_fraction": 0, "test_fraction": 0}
TOPICS = [["plot", "actor"], [], ["music"], ["actor"], ["actor", "music", "plot"]]


def table(labels) -> str:
    return "text\tlabel\n" + "".join(f"film {n}\t{label}\n" for n, label in enumerate(labels))


def jsonl(labels) -> str:
    return "".join(json.dumps({"text": f"film {n}", "label": label}) + "\n" for n, label in enumerate(labels))


def labels_of(rows) -> list:
    return [row["label"] for row in rows]


@pytest.mark.parametrize("several", [table, jsonl])
@pytest.mark.parametrize("separator", ["|", ", "])
def test_several_classes_in_a_text(prepared, several, separator):
    cells = [separator.join(names) for names in TOPICS[:-1]] + [f" music {separator}actor{separator}plot{separator}actor{separator}"]
    splits, facts, issues = prepared(
        several(cells), ending="tsv" if several is table else "jsonl", label_kind="classes", label_separator=separator, **WHOLE
    )
    assert facts["label_names"] == ["actor", "music", "plot"] and facts["label_kind"] == "classes"
    assert labels_of(splits["train"]) == [[0, 2], [], [1], [0], [0, 1, 2]]
    assert facts["splits"]["train"]["label_counts"] == [3, 2, 2]
    assert facts["splits"]["train"]["without_class"] == 1
    assert not issues.counts


def test_several_classes_as_lists(prepared, tmp_path):
    splits, facts, _ = prepared(jsonl(TOPICS), ending="jsonl", label_kind="classes", **WHOLE)
    assert labels_of(splits["train"]) == [[0, 2], [], [1], [0], [0, 1, 2]]
    pyarrow.parquet.write_table(pyarrow.table({"text": ["film"] * 6, "label": [*TOPICS, None]}), tmp_path / "a.parquet")
    data = Data.model_validate({"train": {"path": "x"}, "tokenizer": {"path": "x"}, "label_kind": "classes"})
    found = [label_kind("classes").parser(data).parse(row.values["label"]) for row in rows([tmp_path / "a.parquet"], data, DataIssues())]
    assert found == [*map(tuple, TOPICS), None]


def test_a_null_in_a_list_of_classes_is_an_error(prepared):
    with pytest.raises(BadData, match=r"data\.label: .*line 2: column 'label' cannot be read \(a class in the list is null\)"):
        prepared(jsonl([["music"], ["music", None]]), ending="jsonl", label_kind="classes", **WHOLE)


def test_listed_classes_may_share_a_name_and_others_drop_the_row(prepared, monkeypatch):
    monkeypatch.setattr(surveying, "RARE", 1)
    labels = {"a": "one", "b": "one", "c": "two"}
    splits, facts, issues = prepared(table(["a|b", "c|x", "c", "b|c"]), label_kind="classes", labels=labels, **WHOLE)
    assert facts["label_names"] == ["one", "two"]
    assert labels_of(splits["train"]) == [[0], [1], [0, 1]]
    assert issues.counts == {"unknown_label": 1}
    assert issues.examples["unknown_label"] == ["train.tsv, line 3: ('c', 'x') film 1"]


@pytest.mark.parametrize(
    ("changes", "label", "message"),
    [
        (
            {"labels": {"0": "no", "1": "yes"}},
            "2",
            "data.labels: 60 of the 2060 rows of train have a label that is not listed, such as train.tsv",
        ),
        ({"label_kind": "number"}, "two", "data.label: 60 of the 2060 rows of train have a label that cannot be used, such as train.tsv"),
    ],
)
def test_unusable_labels_far_down_a_file_are_dropped_only_while_they_are_rare(prepared, changes, label, message):
    """Where the check before any job does not reach, as in a file that is sorted by its labels."""
    cells = ["0", "1"] * 1000
    assert prepared(table([*cells, *[label] * 20]), **changes, **WHOLE)[2].counts.total() == 20
    with pytest.raises(BadData, match=message):
        prepared(table([*cells, *[label] * 60]), **changes, **WHOLE)


def test_the_most_common_set_of_classes_does_not_depend_on_the_order(prepared):
    cells = ["b", "a|b", "a|b", "b", "c", "a"]
    found = {
        tuple(prepared(table(order), label_kind="classes", **WHOLE)[1]["splits"]["train"]["most_common_labels"])
        for order in (cells, cells[::-1])
    }
    assert found == {("a", "b")}


def test_numbers(prepared, monkeypatch):
    monkeypatch.setattr(surveying, "RARE", 1)
    cells = ["1.5", "-2", "1e1", "", "four", "inf", "3"]
    splits, facts, issues = prepared(table(cells), label_kind="number", **WHOLE)
    assert labels_of(splits["train"]) == [1.5, -2.0, 10.0, 3.0]
    assert issues.counts == {"missing_label": 1, "not_a_number": 2}
    assert issues.examples["not_a_number"] == ["train.tsv, line 6: 'four' film 4", "train.tsv, line 7: 'inf' film 5"]
    train = facts["splits"]["train"]
    assert (facts["label_names"], facts["label_kind"]) == ([], "number")
    numbers = np.array([1.5, -2, 10, 3])
    expected = [numbers.mean(), numbers.std(), numbers.min(), numbers.max()]
    assert [train[f"label_{name}"] for name in ("mean", "deviation", "least", "most")] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "labels", "withheld", "given"), [("classes", ["a", "b"], ["", ""], ["", "a"]), ("number", [1, 2], [-1, -1], [-1, 0.5])]
)
def test_a_test_set_whose_labels_are_all_withheld_has_none(prepared, tmp_path, kind, labels, withheld, given):
    facts = prepared(table(labels), test=table(withheld), label_kind=kind, dev_fraction=0)[1]
    assert facts["splits"]["test"]["labelled"] is False
    assert torch.isnan(TextExamples(tmp_path / "test.arrow", 0).batch([0, 1])["labels"]).all()
    splits, facts, _ = prepared(table(labels), test=table(given), label_kind=kind, dev_fraction=0)
    assert facts["splits"]["test"]["labelled"] is True and len(splits["test"]) == 2


def test_batches_carry_labels_of_their_kind(prepared, tmp_path):
    prepared(jsonl(TOPICS), ending="jsonl", label_kind="classes", **WHOLE)
    labels = TextExamples(tmp_path / "train.arrow", 0).batch([4, 1, 0])["labels"]
    assert labels.dtype == torch.float32 and labels.tolist() == [[1, 1, 1], [0, 0, 0], [1, 0, 1]]
    prepared(table([0.25, -3, 7]), label_kind="number", **WHOLE)
    labels = TextExamples(tmp_path / "train.arrow", 0).batch([2, 0])["labels"]
    assert labels.dtype == torch.float32 and labels.tolist() == [7, 0.25]
    prepared(table(["b", "a"]), **WHOLE)
    labels = TextExamples(tmp_path / "train.arrow", 0).batch([0, 1])["labels"]
    assert labels.dtype == torch.int64 and labels.tolist() == [1, 0]


def test_duplicates_and_leaks_are_found_whatever_the_label(prepared):
    train = "text\tlabel\ngood film\t1.5\nGood  film\t2\nbad film\t3\n"
    _, _, issues = prepared(train, test="text\tlabel\nBad film\t3\nnew\t1\n", label_kind="number", dev_fraction=0)
    assert (issues.counts["duplicate"], issues.counts["leaked_test"]) == (1, 1)


@pytest.mark.parametrize(
    ("cells", "changes", "words"),
    [
        (
            ["a|b", "b|a"],
            {"label_kind": "classes"},
            ["data.label: all 2 training examples have the same classes, a, b: there is nothing to learn"],
        ),
        (["", ""], {"label_kind": "classes"}, ["data.label: all 2 training examples have the same classes, none"]),
        (
            ["a|x", "b"],
            {"label_kind": "classes", "labels": {"a": "a", "b": "b"}},
            ["data.labels: 1 of the 2 rows of train have", "line 1: ('a', 'x') film 0"],
        ),
        (["1", "one", "2"], {"label_kind": "number"}, ["data.label: 1 of the 3 rows of train have", "'one' film 1", "`label_kind`"]),
        (["2.0", "2"], {"label_kind": "number"}, ["data.label: all 2 training examples have the number 2: there is nothing to learn"]),
        (["", ""], {"label_kind": "number"}, ["data.label: no row of train has a value"]),
        (["a", "b"], {"label_kind": "number"}, ["data.train: no usable example among its 2 rows (2 not a number)"]),
        ([["a"], ["a", "b"]], {}, ["data.label: ", "a.jsonl, line 1 has in column 'label' a list, ['a']", "`data.label_kind: classes`"]),
        ([["a"], ["a", "b"]], {"label_kind": "number"}, ["`data.label_kind: classes`"]),
    ],
)
def test_label_errors_show_before_any_job(tmp_path, cells, changes, words):
    path = tmp_path / "a.jsonl"
    path.write_text(jsonl(cells))
    data = Data.model_validate({"train": {"path": "x"}, "tokenizer": {"path": "x"}} | changes)
    (problem,) = check(data, {"train": [path]})
    assert all(word in problem for word in words), problem


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": None, "label_kind": "number"}, "`label_kind` is number, but `label` is null"),
        ({"label_kind": "number", "labels": {"0": "bad"}}, "`labels` names classes, but `label_kind` is number"),
    ],
)
def test_contradicting_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        Data.model_validate({"train": {"path": "x"}, "tokenizer": {"path": "x"}} | changes)


@pytest.mark.parametrize(
    ("kind", "labels"),
    [("class", [0, 2, 2, 0, 2]), ("classes", [[0], [], [0, 2], [0], []]), ("number", [1e6 + 0.1, 1e6 + 0.3, 1e6 - 2.0, 1e6, 1e6 + 0.3])],
)
def test_a_tally_of_tallies_counts_all_labels(kind, labels):
    """Files are counted by themselves; some are empty."""

    def counted(*some: object) -> Tally[Any]:
        tally = label_kind(kind).tally(["a", "b", "c"])
        for label in some:
            tally.add(label)
        return tally

    whole, merged = counted(*labels), counted()
    for of_file in (counted(), counted(*labels[:2]), counted(), counted(*labels[2:])):
        merged.merge(json.loads(json.dumps(of_file.state())))
    near = {name: pytest.approx(value, rel=1e-9) for name, value in whole.facts().items() if isinstance(value, float)}
    assert merged.facts() == whole.facts() | near
    assert merged.same() == whole.same()
