"""Texts prepared for language models: end tokens, truncation, and prompts separated from answers."""

import re

import pytest
from tokenizers import Tokenizer, processors

from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData
from snaketrain.data.loading.examples import TextExamples
from snaketrain.data.preparing import prepare
from snaketrain.data.tokenizer_files import load_library_tokenizer, vocabulary

UNCUT = {"label": None, "dev_fraction": 0, "test_fraction": 0}
TEXTS = "this was good\n\nthe plot\nwhat a very very boring story that was\n"


@pytest.fixture
def ids(tiny_tokenizer):
    tokenizer = Tokenizer.from_file(str(tiny_tokenizer / "tokenizer.json"))
    return lambda words: [tokenizer.token_to_id(word) for word in words.split()]


def test_every_text_gets_an_end_token(prepared, ids):
    splits, facts, _ = prepared(TEXTS, ending="txt", end_token="never", **UNCUT)
    assert [row["input_ids"][-1:] for row in splits["train"]] == [ids("never")] * 3
    assert splits["train"][1]["input_ids"] == ids("[CLS] the plot [SEP] never")
    assert facts["splits"]["train"]["tokens"] == sum(len(row["input_ids"]) for row in splits["train"])


def test_the_end_token_survives_truncation(prepared, ids):
    splits, facts, _ = prepared(TEXTS, ending="txt", end_token="never", max_length=6, **UNCUT)
    assert splits["train"][2]["input_ids"] == ids("[CLS] what a very [SEP] never")
    assert (facts["splits"]["train"]["longest"], facts["splits"]["train"]["truncated"]) == (6, 1)


def test_texts_are_not_truncated_without_a_length(prepared):
    text = " ".join(["good"] * 5000)
    splits, facts, issues = prepared(f"{text}\nbad\n", ending="txt", max_length=None, **UNCUT)
    assert [len(row["input_ids"]) for row in splits["train"]] == [5002, 3]
    assert facts["splits"]["train"]["truncated"] == 0 and "truncated" not in issues.counts


@pytest.mark.parametrize(
    ("token", "answer"), [("nevr", "Did you mean 'never'?"), ("<end>", "Its special tokens are '[SEP]', '<|im_end|>'.")]
)
def test_an_end_token_outside_the_vocabulary(tiny_tokenizer, tmp_path, token, answer):
    tokenizer = Tokenizer.from_file(str(tiny_tokenizer / "tokenizer.json"))
    tokenizer.add_special_tokens(["[SEP]", "<|im_end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(BadData, match=re.escape(f"data.end_token: the vocabulary has no token '{token}'. {answer}")):
        load_library_tokenizer(tmp_path, Data(train={"path": "x"}, tokenizer={"path": "x"}, end_token=token, **UNCUT))


@pytest.mark.parametrize("template", ["[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS] $A $B", "$A:0 [SEP]:0 $B:0"])
def test_token_types_mark_the_answer_for_every_tokenizer(tiny_tokenizer, ids, tmp_path, template):
    tokenizer = Tokenizer.from_file(str(tiny_tokenizer / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair=template, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chats.jsonl").write_text(
        '{"prompt": "was it good", "answer": "very boring"}\n{"prompt": "what", "answer": "that story"}\n'
    )
    data = Data(train={"path": "x"}, tokenizer={"path": "x"}, text=["prompt", "answer"], end_token="never", **UNCUT)
    prepare(data, {"train": [tmp_path / "chats.jsonl"]}, tmp_path, tmp_path, tmp_path)
    batch = TextExamples(tmp_path / "train.arrow", 0).batch([0])
    tokens, types = batch["input_ids"][0].tolist(), batch["token_type_ids"][0].tolist()
    first = tokens.index(ids("very")[0])
    assert tokens[first : first + 2] == ids("very boring") and tokens[-1:] == ids("never")
    assert types[: len(tokens)] == [0] * first + [1] * (len(tokens) - first)


def test_added_tokens_belong_to_the_vocabulary(tiny_tokenizer, tmp_path):
    """Otherwise a model made for the data would have no embeddings for them."""
    library = Tokenizer.from_file(str(tiny_tokenizer / "tokenizer.json"))
    before = library.get_vocab_size()
    library.add_tokens(["<new>"])
    library.save(str(tmp_path / "tokenizer.json"))
    assert vocabulary(tmp_path)["<new>"] == before
