"""Prepared data against a plain reading of the same files: the split, the classes, the tokens, and the data issues."""

import json
import subprocess
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from pipeline.warm_python import warm_python

from snaketrain.config.schema import Data, Examples, Source
from snaketrain.data import split_files, splitting, surveying
from snaketrain.data.cells import BadData
from snaketrain.data.fetching import fetch
from snaketrain.data.preparing import prepare
from snaketrain.data.reading import PREVIEW_FILES
from snaketrain.data.splitting import Keys, among, repeated
from snaketrain.data.tokenizer_files import PROCESSES_FROM_BYTES, copy_tokenizer, pad_token_id
from snaketrain.runtime.manifests import read_manifest
from snaketrain.runtime.stages import settings_words

SCRIPTS = Path(__file__).resolve().parents[2] / "workflow/scripts"
CLASSES = {"0": "negative", "1": "positive"}


def table(rows) -> str:
    return "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)


ROWS = [(f"this movie {n} was great", n % 2) for n in range(1000)]


def test_splits_are_exact_disjoint_and_complete(prepared):
    splits, facts, _ = prepared(table(ROWS), dev_fraction=0.15, test_fraction=0.2)
    assert [len(splits[split]) for split in ("train", "dev", "test")] == [650, 150, 200]
    assert sorted(row["line"] for rows in splits.values() for row in rows) == list(range(2, 1002))
    assert all([row["id"] for row in rows] == list(range(len(rows))) for rows in splits.values())
    assert all((row["text"], row["label"]) == ROWS[row["line"] - 2] for rows in splits.values() for row in rows)
    assert facts["splits"]["dev"]["label_counts"] == [sum(row["label"] == c for row in splits["dev"]) for c in (0, 1)]


def test_columns_of_slices_are_kept_as_text(prepared):
    places = ["web", None, 7, True]
    rows = "".join(json.dumps({"text": text, "label": label, "from": places[n % 4]}) + "\n" for n, (text, label) in enumerate(ROWS))
    splits, _, _ = prepared(rows, ending="jsonl", slices=["from"])
    without, _, _ = prepared(rows, ending="jsonl")
    shown = ["web", "", "7", "true"]
    for split, found in splits.items():
        assert [row.pop("slice:from") for row in found] == [shown[(row["line"] - 1) % 4] for row in without[split]]
        assert found == without[split], "and nothing else changes"
    with pytest.raises(BadData, match=r"data\.slices: train file .* has no column 'form'"):
        prepared(rows, ending="jsonl", slices=["form"])
    with pytest.raises(BadData, match=r"data\.slices: .*line 1 has in column 'of' "):
        prepared(rows.replace('"from": "web"', '"of": [1]'), ending="jsonl", slices=["of"])


def test_splits_depend_only_on_the_seed(prepared):
    def lines(**changes):
        return {split: [row["line"] for row in rows] for split, rows in prepared(table(ROWS), **changes)[0].items()}

    first = lines()
    assert lines() == first
    assert lines(split_seed=1)["dev"] != first["dev"]
    assert lines(dev_fraction=0.3)["test"] == first["test"], "another dev_fraction leaves the test set alone"
    limited = lines(limit_train=50, limit_dev=7)
    assert (len(limited["train"]), len(limited["dev"]), limited["test"]) == (50, 7, first["test"])
    assert set(limited["train"]) < set(first["train"])
    assert set(limited["train"]) < set(lines(limit_train=60)["train"])


def test_a_limit_does_not_change_the_examples_it_keeps(prepared):
    changes = {"max_length": 6, "text": ["text", "more"], "ending": "jsonl"}
    train = "".join(
        json.dumps({"text": text, "more": "good " * (n % 5 + 1), "label": label}) + "\n" for n, (text, label) in enumerate(ROWS)
    )
    every, _, _ = prepared(train, **changes)
    some, facts, issues = prepared(train, limit_train=50, limit_dev=7, **changes)
    for split, rows in some.items():
        without = {row["line"]: row for row in every[split]}
        assert [row | {"id": 0} for row in rows] == [without[row["line"]] | {"id": 0} for row in rows]
    assert facts["splits"]["train"]["tokens"] == sum(len(row["input_ids"]) for row in some["train"])
    assert issues.counts["truncated"] == 50 + 7 + 100


@pytest.mark.parametrize("limits", [{}, {"limit_train": 500}])
def test_batches_leave_no_trace_in_the_examples(prepared, monkeypatch, limits):
    at_once = prepared(table(ROWS), **limits)[0]
    monkeypatch.setattr(split_files, "BATCH_ROWS", 7)
    assert prepared(table(ROWS), **limits)[0] == at_once


@pytest.mark.parametrize(("last", "made"), [("", ["dev.arrow", "test.arrow", "train.arrow"]), ("{", [])])
def test_temporary_files_are_deleted(prepared, tmp_path, last, made):
    rows = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS)
    with pytest.raises(BadData, match="line 1001: not JSON") if last else nullcontext():
        prepared(rows + last, ending="jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*made, "tokenizer", "train.jsonl"])


def test_given_files_are_not_split(prepared):
    splits, _, _ = prepared(table(ROWS[:20]), dev=table(ROWS[20:25]), test=table(ROWS[25:32]), limit_test=3)
    assert [len(rows) for rows in splits.values()] == [20, 5, 3]


def test_duplicates_and_leakage_agree_with_a_plain_count(prepared):
    texts = [f"great movie {n % 37}" if n % 3 else f"GREAT   movie {n % 37}" for n in range(300)]
    splits, _, issues = prepared(table((text, n % 2) for n, text in enumerate(texts)), test=table([("Great movie 5", 1), ("unseen", 0)]))
    normal = {split: [" ".join(row["text"].lower().split()) for row in rows] for split, rows in splits.items()}
    seen = set(normal["train"])
    assert issues.counts["duplicate"] == len(normal["train"]) - len(seen) > 0
    assert issues.counts["leaked_dev"] == sum(text in seen for text in normal["dev"]) > 0
    assert issues.counts["leaked_test"] == 1
    assert issues.examples["leaked_test"] == ["test.tsv, line 2: Great movie 5"]


@pytest.mark.parametrize("at_a_time", [1, 7, 50, 10_000])
def test_repetitions_are_those_of_a_plain_count(monkeypatch, at_a_time):
    monkeypatch.setattr(splitting, "AT_A_TIME", at_a_time)
    draw = np.random.default_rng(0)
    known = draw.integers(0, 2**64, 60, np.uint64)
    keys, others = draw.choice(known, 200), known[50:55]
    again = [n for n in range(200) if keys[n] in keys[:n]]

    def parts(keys: np.ndarray, *ends: int) -> list[Keys]:
        return list(map(Keys.of, np.split(keys, ends)))

    assert repeated(parts(keys, 3, 3, 90), 5) == (len(again), again[:5])
    there = [n for n in range(200) if keys[n] in others]
    assert among(parts(keys, 100), parts(others), 5) == (len(there), there[:5])
    assert among(parts(others[:0]), parts(keys), 5) == (0, []) and repeated([], 5) == (0, [])


def test_copies_are_found_whatever_their_spacing_and_their_accents(prepared):
    """An accent is one character or two; some spaces have no width."""
    seen = ["the caf\u00e9 is open", "na\u00efve and long", "one two", "E\u0301t\u00e9"]
    copies = ["the cafe\u0301 is open", "nai\u0308ve  and\u00a0long", "\ufeffone\u200b two\u2003", "\u00e9te\u0301", "never seen"]
    rows = [(text, n % 2) for n, text in enumerate(seen)]
    _, _, issues = prepared(table(rows), dev=table([("apart", 0)]), test=table([(text, 0) for text in copies]))
    assert issues.counts["leaked_test"] == 4 and not issues.counts["leaked_dev"]
    assert issues.examples["leaked_test"][0].startswith("test.tsv, line 2: ")


@pytest.mark.parametrize("own_files", [True, False])
def test_a_test_set_that_is_the_development_set_too_is_told(prepared, own_files):
    rows = [(text, label) for text, label in ROWS[:6]]
    other = {"dev": table(rows)} | ({"test": table([(f" {text.upper()}", label) for text, label in rows[:5]])} if own_files else {})
    splits, _, issues = prepared(table(ROWS[6:] + rows), **other, test_fraction=0.1 if own_files else 0.5)
    known = {row["text"].lower() for row in splits["dev"]}
    assert issues.counts["test_in_dev"] == sum(row["text"].lower().strip() in known for row in splits["test"])
    assert issues.counts["test_in_dev"] == 5 if own_files else issues.counts["test_in_dev"] > 0


def test_unusable_rows_are_dropped_counted_and_named(prepared, monkeypatch):
    monkeypatch.setattr(surveying, "RARE", 1)
    rows = [("good", 1), ("bad", 0), ("", 1), ("  ", 0), ("great", ""), ("boring", -1), ("film", 7), ("very good", 1)]
    splits, _, issues = prepared(table(rows), labels=CLASSES, dev_fraction=0, test_fraction=0)
    assert [row["text"] for row in splits["train"]] == ["good", "bad", "very good"]
    assert issues.counts == {"empty_text": 2, "missing_label": 2, "unknown_label": 1}
    assert issues.examples["unknown_label"] == ["train.tsv, line 8: '7' film"]
    assert splits["dev"] == splits["test"] == []


@pytest.mark.parametrize("test", ["text\nnever seen\nnot good\n", table([("never seen", -1), ("not good", -1)])])
def test_an_unlabelled_test_set_is_kept(prepared, test):
    splits, facts, issues = prepared(table(ROWS[:20]), test=test)
    assert [row["label"] for row in splits["test"]] == [-100, -100]
    assert facts["splits"]["test"]["labelled"] is False and facts["splits"]["train"]["labelled"] is True
    assert "missing_label" not in issues.counts


def test_a_test_set_with_some_labels_loses_the_rows_without(prepared):
    splits, facts, issues = prepared(table(ROWS[:20]), test=table([("never", ""), ("not good", 1)]))
    assert [row["text"] for row in splits["test"]] == ["not good"]
    assert facts["splits"]["test"]["labelled"] and issues.counts["missing_label"] == 1


@pytest.mark.parametrize(
    ("labels", "found", "names", "numbers"),
    [
        (["b", "a", "b", "c"], None, ["a", "b", "c"], [1, 0, 1, 2]),
        (["2", "nan", "1", "inf"], None, ["1", "2", "inf", "nan"], [1, 3, 0, 2]),
        ([10, 9, -1, 10], None, ["-1", "9", "10"], [2, 1, 0, 2]),
        ([0, 1, 1, 0], {"1": "positive", "0": "negative"}, ["positive", "negative"], [1, 0, 0, 1]),
        ([0, 1, 2, 0], {"0": "negative", "1": "negative", "2": "positive"}, ["negative", "positive"], [0, 0, 1, 0]),
    ],
)
def test_classes(prepared, labels, found, names, numbers):
    rows = [(f"film {n}", label) for n, label in enumerate(labels)]
    splits, facts, _ = prepared(table(rows), labels=found, dev_fraction=0, test_fraction=0)
    assert facts["label_names"] == names
    assert [row["label"] for row in splits["train"]] == numbers


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize("labels", [None, CLASSES])
def test_a_row_of_a_class_that_is_not_trained_on_is_an_error(prepared, split, labels):
    given = {split: table([("never seen", 1), ("nor this", 7), ("withheld", -1)])}
    with pytest.raises(BadData, match=rf"{split}.*'7'" if labels else rf"{split}.tsv, line 3 is of class '7', which no training row has"):
        prepared(table(ROWS[:20]), labels=labels, **given)


def test_classes_that_chance_keeps_from_training_are_counted(prepared):
    rows = [*ROWS[:20], ("only one", "lable"), ("only two", "2"), ("not trained", "2")]
    splits, facts, issues = prepared(
        table(rows), test=table([("a", 3), ("b", 3)]), labels=CLASSES | {"2": "none", "3": "other", "lable": "x"}
    )
    assert issues.counts["untrained_class"] >= 2 and "test: other" in issues.examples["untrained_class"]
    _, _, issues = prepared(table(rows), dev_fraction=0, test_fraction=0)
    assert issues.counts["single_row_class"] == 1
    assert issues.examples["single_row_class"] == ["train.tsv, line 22: lable"]


def test_classes_that_look_alike_are_told(prepared):
    names = ["caf\u00e9", "cafe\u0301", "Tea", "tea", "te\u200ba", "water"]
    _, facts, issues = prepared(table([(text, names[number % 6]) for number, (text, _) in enumerate(ROWS)]))
    assert facts["label_names"] == sorted(names), "they stay what they are"
    assert issues.counts["alike_classes"] == 3
    assert issues.examples["alike_classes"][:2] == ["train.tsv, line 3: 'cafe\\u0301' and 'caf\\xe9'", "train.tsv, line 5: 'tea' and 'Tea'"]


def test_a_header_with_other_names_than_the_columns_is_not_read_as_a_row(prepared):
    rows = "sentence\tscore\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS[:20])
    with pytest.raises(BadData, match="data.columns: .* but train.tsv, line 1 looks like one: no other row has its label 'score'"):
        prepared(rows, columns=["text", "label"])
    splits, _, _ = prepared(rows.partition("\n")[2], columns=["text", "label"])
    assert sum(map(len, splits.values())) == 20


def test_language_modelling_has_no_labels(prepared):
    splits, facts, issues = prepared("this was good\n\nthe plot\n", ending="txt", label=None, dev_fraction=0, test_fraction=0)
    assert [(row["text"], row["label"]) for row in splits["train"]] == [("this was good", -100), ("the plot", -100)]
    assert facts["label_names"] == [] and issues.counts["empty_text"] == 1


def test_tokens_are_those_of_the_tokenizer_alone(prepared, tiny_tokenizer, tmp_path):
    from tokenizers import Tokenizer

    reference = Tokenizer.from_file(str(tiny_tokenizer / "tokenizer.json"))
    reference.no_padding()
    reference.enable_truncation(6)
    texts = ["great film", "this movie was not very good really", "what a story", "a b c d"]
    splits, facts, issues = prepared(table((t, n % 2) for n, t in enumerate(texts)), max_length=6, dev_fraction=0, test_fraction=0)
    assert [row["input_ids"] for row in splits["train"]] == [reference.encode(text).ids for text in texts]
    assert facts["splits"]["train"] == {
        "labelled": True, "examples": 4, "tokens": 4 + 6 + 5 + 6, "longest": 6, "truncated": 1, "label_counts": [2, 2],
    }  # fmt: skip
    assert issues.examples["truncated"] == ["train.tsv, line 3: this movie was not very good really"]
    assert pad_token_id(tmp_path / "tokenizer") == 0


def test_pairs_carry_their_token_types(prepared):
    train = "question\tanswer\tlabel\nwas it good\tvery good\t1\nthe plot\tnot really\t0\nempty\t\t1\n"
    splits, _, issues = prepared(train, text=["question", "answer"], dev_fraction=0, test_fraction=0)
    first = splits["train"][0]
    assert (first["text"], first["text_pair"]) == ("was it good", "very good")
    assert first["token_type_ids"] == [0] * 5 + [1] * 3 and len(first["input_ids"]) == 8
    assert issues.counts["empty_text"] == 1


def test_a_column_that_one_of_many_files_lacks_is_an_error(tmp_path, tiny_tokenizer):
    """Its rows would be dropped as rows without a text. The check before any job looks at the first files alone."""
    copy_tokenizer(tiny_tokenizer, tmp_path / "tokenizer")
    files = [tmp_path / f"{number:03}.csv" for number in range(PREVIEW_FILES + 5)]
    for number, file in enumerate(files):
        file.write_text(f"{'review' if number == PREVIEW_FILES + 2 else 'text'},label\na film {number},{number % 2}\n")
    data = Data.model_validate({"train": {"path": "x"}, "tokenizer": {"path": "x"}})
    with pytest.raises(BadData, match=r"data.text: train file .*/052.csv has no column 'text'. It has: review, label"):
        prepare(data, {"train": files}, tmp_path, tmp_path / "tokenizer", tmp_path)


def test_lone_surrogates_from_json_are_replaced(prepared):
    rows = [{"text": "good \ud83d film", "label": 1}, {"text": "bad", "label": 0}]
    splits, _, issues = prepared("".join(json.dumps(row) + "\n" for row in rows), ending="jsonl", dev_fraction=0, test_fraction=0)
    assert splits["train"][0]["text"] == "good ? film"
    assert issues.counts["bad_encoding"] == 1


@pytest.mark.parametrize(
    ("train", "changes", "message"),
    [
        (table([("good", 1), ("great", 1)]), {"dev_fraction": 0, "test_fraction": 0}, "one class, '1'"),
        (table([("good", 1), ("bad", 0)]), {}, "nothing is left to train on"),
        (table([("", 1), ("", 0)]), {}, "no usable example among its 2 rows .2 empty text."),
        (table(ROWS), {"max_length": 2}, "data.max_length: 2 leaves no room"),
        (table((f"film {n}", n) for n in range(10_001)), {}, "more than 10000 different values"),
    ],
)
def test_data_that_cannot_be_used(prepared, train, changes, message):
    with pytest.raises(BadData, match=message):
        prepared(train, **changes)


# --- the stages as they are run


def stage(name, tmp_path, output, *arguments, settings):
    command = [warm_python(), SCRIPTS / f"{name}.py", "--output", tmp_path / output, *arguments]
    command += settings_words(tmp_path / "made", name, settings)
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)


@pytest.fixture
def fetched(tmp_path, tiny_tokenizer):
    (tmp_path / "train.tsv").write_text(table(ROWS))
    data = Data(train=Examples(path="train.tsv"), tokenizer=Source(path=str(tiny_tokenizer)), labels=CLASSES, name="movies")
    assert stage("fetch_data", tmp_path, "raw/manifest.json", settings={"data": data.as_json}).returncode == 0
    assert stage("fetch_source", tmp_path, "model/manifest.json", settings={"source": data.tokenizer.as_json}).returncode == 0
    return data


def test_the_stages_give_the_same_content_every_time(tmp_path, fetched):
    contents = []
    for output in ("first/manifest.json", "second/manifest.json"):
        arguments = ["--raw", tmp_path / "raw/manifest.json", "--tokenizer", tmp_path / "model/manifest.json"]
        done = stage("prepare_data", tmp_path, output, *arguments, settings={"data": fetched.as_json})
        assert done.returncode == 0, done.stderr
        assert "train       800 examples" in done.stdout
        contents.append(read_manifest(tmp_path / output))
    first, second = contents
    assert first.content == second.content and first.identity == second.identity
    assert {"train.arrow", "dev.arrow", "test.arrow", "report.json", "tokenizer/tokenizer.json"} <= set(first.files)
    assert first.facts["label_names"] == ["negative", "positive"] and first.facts["vocab_size"] == 24
    assert json.loads((tmp_path / "first/report.json").read_text())["odd"]["duplicate"]["count"] == 0


def test_processes_for_much_data_make_no_difference(tmp_path, tiny_tokenizer):
    rows = [(f"a film {number} " + "that was never really good " * 10, number % 2) for number in range(PROCESSES_FROM_BYTES // 50)]
    (tmp_path / "train.tsv").write_text(table(rows))  # several times as long, since a process takes time to wake up
    data = Data(train=Examples(path="train.tsv"), tokenizer=Source(path=str(tiny_tokenizer)), name="movies", max_length=40)
    stage("fetch_data", tmp_path, "raw/manifest.json", settings={"data": data.as_json})
    stage("fetch_source", tmp_path, "model/manifest.json", settings={"source": data.tokenizer.as_json})
    contents = []
    for threads in (1, 3):
        arguments = ["--raw", tmp_path / "raw/manifest.json", "--tokenizer", tmp_path / "model/manifest.json", "--threads", str(threads)]
        done = stage("prepare_data", tmp_path, f"{threads}/manifest.json", *arguments, settings={"data": data.as_json})
        assert done.returncode == 0, done.stderr
        contents.append(read_manifest(tmp_path / f"{threads}/manifest.json").content)
    assert contents[0] == contents[1]


def test_a_stage_reports_all_problems_without_a_traceback(tmp_path, fetched):
    arguments = ["--raw", tmp_path / "raw/manifest.json", "--tokenizer", tmp_path / "model/manifest.json"]
    wrong = fetched.model_copy(update={"text": ["txt"], "label": "lable"})
    done = stage("prepare_data", tmp_path, "out/manifest.json", *arguments, settings={"data": wrong.as_json})
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "Did you mean 'text'" in done.stderr and "Did you mean 'label'" in done.stderr
    assert not (tmp_path / "out/manifest.json").exists()


@pytest.mark.parametrize("pair", [False, True])
def test_transformers_and_preparation_give_pairs_the_same_token_types(tmp_path, tiny_tokenizer, pair):
    from transformers import AutoTokenizer

    copy_tokenizer(tiny_tokenizer, tmp_path / "copy", pair)
    encoded = AutoTokenizer.from_pretrained(tmp_path / "copy")(*(["good film", "very bad"] if pair else ["good film"]))
    assert encoded.get("token_type_ids") == ([0, 0, 0, 0, 1, 1, 1] if pair else None)


def test_a_copied_tokenizer_has_lost_its_own_padding(tmp_path, tiny_tokenizer):
    from tokenizers import Tokenizer

    fetch(Source(path=str(tiny_tokenizer)), tmp_path / "files")
    assert copy_tokenizer(tmp_path / "files", tmp_path / "copy") == ["tokenizer.json", "tokenizer_config.json"]
    assert len(Tokenizer.from_file(str(tmp_path / "copy/tokenizer.json")).encode("good").ids) == 3
    assert json.loads((tmp_path / "copy/tokenizer_config.json").read_text())["pad_token"] == "[PAD]"
