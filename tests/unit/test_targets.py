"""Sources and targets prepared for sequence to sequence models, against the tokenizers library on each text by itself."""

import json

import pytest
from tokenizers import Tokenizer

from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData
from snaketrain.data.loading.examples import NO_TARGET, TextExamples
from snaketrain.data.preparing import prepare
from snaketrain.data.tokenizer_files import copy_tokenizer

ROWS = [
    {"text": "what a very boring story", "summary": "very bad"},
    {"text": "good", "summary": "not bad at all it was good"},
    {"text": "the plot", "summary": "  "},
    {"text": "this film", "summary": "good"},
]
SETTINGS = {"text": "text", "target": "summary", "label": None, "dev_fraction": 0, "test_fraction": 0}


def as_jsonl(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def ids(tiny_tokenizer):
    """The tokens of one text, with the special tokens of the tokenizer."""
    tokenizer = Tokenizer.from_file(str(tiny_tokenizer / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return lambda text: tokenizer.encode(text).ids


def test_source_and_target_are_separate_sequences(prepared, ids):
    splits, facts, issues = prepared(as_jsonl(ROWS), ending="jsonl", **SETTINGS)
    whole = [row for row in ROWS if row["summary"].strip()]
    assert [(row["text"], row["target"]) for row in splits["train"]] == [(row["text"], row["summary"]) for row in whole]
    assert [row["input_ids"] for row in splits["train"]] == [ids(row["text"]) for row in whole]
    assert [row["target_ids"] for row in splits["train"]] == [ids(row["summary"]) for row in whole]
    assert facts["splits"]["train"]["longest_target"] == max(len(ids(row["summary"])) for row in whole)
    assert issues.counts["empty_text"] == 1, "a row without a target teaches nothing"


def test_source_and_target_have_separate_lengths_and_only_targets_an_end_token(prepared, ids):
    splits, facts, _ = prepared(as_jsonl(ROWS), ending="jsonl", max_length=5, max_target_length=6, end_token="never", **SETTINGS)
    (end,) = ids("never")[1:-1]
    assert splits["train"][0]["input_ids"] == ids("what a very")
    assert splits["train"][1]["target_ids"] == [*ids("not bad at"), end]
    assert [len(row["target_ids"]) for row in splits["train"]] == [5, 6, 4]
    assert facts["splits"]["train"]["truncated"] == 2


def test_a_length_without_room_for_a_target(prepared):
    with pytest.raises(BadData, match="data.max_target_length: 2 leaves no room for text"):
        prepared(as_jsonl(ROWS), ending="jsonl", max_target_length=2, **SETTINGS)


def test_a_batch_pads_targets_with_what_losses_ignore(tiny_tokenizer, tmp_path, ids):
    (tmp_path / "train.jsonl").write_text(as_jsonl(ROWS))
    copy_tokenizer(tiny_tokenizer, tmp_path / "tokenizer")
    data = Data(train={"path": "x"}, tokenizer={"path": "x"}, **SETTINGS)
    prepare(data, {"train": [tmp_path / "train.jsonl"]}, tmp_path, tmp_path / "tokenizer", tmp_path)
    examples = TextExamples(tmp_path / "train.arrow", pad_token_id=0)
    batch = examples.batch([0, 1])
    first, second = ids("very bad"), ids("not bad at all it was good")
    assert batch["target_ids"].tolist() == [first + [NO_TARGET] * (len(second) - len(first)), second]
    assert examples.lengths[:2].tolist() == [len(ids(ROWS[0]["text"])) + len(first), len(ids("good")) + len(second)]
