"""Questions with choices in files, their tokens as transformers makes them, scores of one choice at a time, and bad rows with file and line."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch.nn.functional import log_softmax
from transformers import PreTrainedTokenizerFast

from snaketrain.checking.planned import planned_data
from snaketrain.config.schema import Data, Settings
from snaketrain.data.cells import BadData
from snaketrain.data.loading.examples import TextExamples
from snaketrain.data.preparing import prepare
from snaketrain.data.surveying import check
from snaketrain.data.tokenizer_files import copy_tokenizer
from snaketrain.extras.multiple_choice.task import MultipleChoice

ROWS = [
    {"question": "Ann visits", "choices": ["New York", "Bob", "it\nrains"], "answer": 1},
    {"question": "where is it, Bob?", "choices": ["here", "unbelievably far"], "answer": "0"},
    {"question": "why", "choices": ["Ann", "Bob", "York", "rains"], "answer": "D"},
]
COLUMNS = {
    "text": ["question", "choices"],
    "label": "answer",
    "label_kind": "choice",
    "max_length": 64,
    "dev_fraction": 0,
    "test_fraction": 0,
}


@pytest.fixture(scope="module", params=["pairs", "running text"])
def folder(request, tmp_path_factory) -> Path:
    """With the tokenizer of an encoder, or one that writes a first token and no last one, like that of a language model."""
    folder, pairs = tmp_path_factory.mktemp("choices"), request.param == "pairs"
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>") if pairs else models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer() if pairs else pre_tokenizers.ByteLevel(add_prefix_space=False)
    given = {"special_tokens": ["<pad>", "<unk>", "<s>", "</s>"], "vocab_size": 300, "show_progress": False}
    alphabet = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    trainer = trainers.WordPieceTrainer(**given) if pairs else trainers.BpeTrainer(**given, **alphabet)
    tokenizer.train_from_iterator(["Ann visits it again", "New York likes Bob", "where why is here rains"] * 20, trainer)
    special = [("<s>", 2), ("</s>", 3)]
    single, pair = ("<s> $A </s>", "<s> $A </s> $B:1 </s>:1") if pairs else ("<s> $A", "<s> $A <s> $B:1")
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
    (folder / "original").mkdir()
    tokenizer.save(str(folder / "original/tokenizer.json"))
    copy_tokenizer(folder / "original", folder / "tokenizer")
    return folder


def data_of(**changes) -> Data:
    return Data.model_validate({"train": {"path": "x"}, "tokenizer": {"path": "x"}} | COLUMNS | changes)


def prepared(folder: Path, rows: list[dict], **changes):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read(folder, "rows.jsonl", **changes)


def read(folder: Path, file: str, **changes):
    facts, issues = prepare(data_of(**changes), {"train": [folder / file]}, folder, folder / "tokenizer", folder)
    return pyarrow.ipc.open_file(pyarrow.memory_map(str(folder / "train.arrow"))).read_all(), facts, issues


def test_all_formats_have_the_same_rows(folder):
    expected, facts, _ = prepared(folder, ROWS)
    assert expected["label"].to_pylist() == [1, 0, 3] and facts["splits"]["train"]["right"] == [1, 1, 0, 1]
    numbered = [row | {"answer": number} for row, number in zip(ROWS, (1, 0, 3), strict=True)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(numbered), folder / "rows.parquet")
    assert read(folder, "rows.parquet")[0].equals(expected)
    lines = [row | {"choices": "\n".join(each.replace("\n", " ") for each in row["choices"])} for row in ROWS]
    assert prepared(folder, lines)[0].equals(expected)
    ended = [row | {"choices": row["choices"].replace("\n", "\r\n")} for row in lines]
    assert prepared(folder, ended)[0].equals(expected), "as a CSV file from Windows has them"


def test_tokens_are_those_of_transformers(folder):
    table, _, _ = prepared(folder, ROWS)
    reference = PreTrainedTokenizerFast(tokenizer_file=str(folder / "original/tokenizer.json"), pad_token="<pad>")
    reference.model_input_names = ["input_ids", "token_type_ids"]
    pairs = reference("a")["input_ids"][-1] == 3
    for row, given in zip(table.to_pylist(), ROWS, strict=True):
        choices = [choice.replace("\n", " ") for choice in given["choices"]]
        wanted = [reference(given["question"], each) if pairs else reference(f"{given['question']} {each}") for each in choices]
        for name in ("input_ids", "token_type_ids"):
            assert row[name] == [token for each in wanted for token in each[name]], name
        assert row["choices"] == [len(each["input_ids"]) for each in wanted]
        scored = [token for token, mark in zip(row["input_ids"], row["scored"], strict=True) if mark]
        assert "".join(reference.decode(scored).replace("Ġ", "").split()) == "".join("".join(choices).split()) or pairs


def test_the_question_loses_its_begin_and_then_the_choice_its_end(folder):
    whole, _, _ = prepared(folder, ROWS)
    cut, _, issues = prepared(folder, ROWS, max_length=7)
    assert issues.counts["truncated"] >= 1 and max(max(row) for row in cut["choices"].to_pylist()) == 7
    for before, after in zip(whole.to_pylist(), cut.to_pylist(), strict=True):
        start = begin = 0
        for length, kept in zip(before["choices"], after["choices"], strict=True):
            marks = [row["scored"][at : at + size] for row, at, size in ((before, start, length), (after, begin, kept))]
            ids = [row["input_ids"][at : at + size] for row, at, size in ((before, start, length), (after, begin, kept))]
            choice = [[token for token, mark in zip(*each, strict=True) if mark] for each in zip(ids, marks, strict=True)]
            assert choice[1] == choice[0][: len(choice[1])] and (len(choice[1]) == len(choice[0]) or sum(marks[1]) >= 4)
            start, begin = start + length, begin + kept


@pytest.mark.parametrize("use", ["BertForMultipleChoice", "LlamaForCausalLM"])
def test_scores_are_those_of_one_choice_at_a_time(folder, use):
    _, facts, _ = prepared(folder, ROWS)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "initializer_range": 0.5}
    task = MultipleChoice()
    facts |= {"vocab_size": 300, "pad_token_id": 0}
    modules = task.build({"use": f"transformers.{use}", "arguments": small}, None, facts)
    model = modules["model"].eval()
    batch = TextExamples(folder / "train.arrow", 0).batch([0, 1, 2])
    scores = task.scores(modules, batch)
    assert scores.shape == (3, 4, 2) and scores[1, 2:].isneginf().all()
    for question in range(3):
        start = 0
        for choice, length in enumerate(filter(lambda length: length > 0, batch["choices"][question].tolist())):
            ids, types, marks = (batch[name][question, start : start + length] for name in ("input_ids", "token_type_ids", "scored"))
            if use == "LlamaForCausalLM":
                steps = log_softmax(model(ids[None]).logits[0], -1)
                each = torch.stack([steps[place - 1, ids[place]] for place in range(1, length) if marks[place]])
                expected = [each.sum().item(), each.mean().item()]
            else:
                expected = [model(ids[None, None], token_type_ids=types[None, None]).logits.item()] * 2
            assert scores[question, choice].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
            start += length
    by_hand = sum(-log_softmax(scores[row, :, 0], 0)[label] for row, label in enumerate([1, 0, 3]))
    assert task.training_step(modules, batch).item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_other_models_are_refused(folder):
    _, facts, _ = prepared(folder, ROWS)
    with pytest.raises(SystemExit, match="neither has a head for choices nor continues texts"):
        small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        facts |= {"vocab_size": 300, "pad_token_id": 0}
        MultipleChoice().build({"use": "transformers.BertForSequenceClassification", "arguments": small}, None, facts)
    with pytest.raises(SystemExit, match=r"model\.use: transformers.BertForMaskedLM attends to the tokens that it has to predict"):
        MultipleChoice().build({"use": "transformers.BertForMaskedLM", "arguments": small | {"initializer_range": 0.5}}, None, facts)


BAD = [
    ({"answer": 3}, "it is choice 3, counted from 0, of 3"),
    ({"answer": "E"}, "it is choice 4, counted from 0, of 3"),
    ({"answer": "Bob"}, "'Bob' is neither the number of a choice, from 0, nor its letter, from A"),
    ({"choices": ["Ann"]}, "there is one choice: give a list of several"),
    ({"choices": ["Ann", " ", "Bob"]}, "choice 1, counted from 0, is empty"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_bad_rows_are_refused_with_file_and_line(folder, change, message):
    rows = [ROWS[0], ROWS[0] | change]
    with pytest.raises(BadData) as refused:
        prepared(folder, rows)
    assert message in str(refused.value) and "rows.jsonl, line 2: column 'answer' cannot be read" in str(refused.value)
    assert message in "\n".join(check(data_of(), {"train": [folder / "rows.jsonl"]}))


def test_a_plan_says_that_it_knows_no_number_of_choices(folder, tmp_path):
    tokenizer = {"tokenizer": {"path": str(folder / "tokenizer")}, "max_length": 16, "dev_fraction": 0.1}
    run = Settings.model_validate(
        {
            "data": data_of().model_dump(exclude_unset=True) | tokenizer,
            "model": {"use": "transformers.BertForMultipleChoice"},
            "train": {"task": "multiple_choice"},
        }
    )
    assert "; every example has one choice, and each further one takes as much again" in planned_data(run, tmp_path, tmp_path).assumed


def test_odd_rows_are_counted(folder):
    rows = [*ROWS, {"question": "who", "choices": ["Ann", "Ann"], "answer": 0}, ROWS[0] | {"answer": None}]
    table, _, issues = prepared(folder, rows)
    assert issues.examples["odd_label"] == ["rows.jsonl, line 4: several choices are 'Ann'"]
    assert len(table) == 4 and issues.counts["missing_label"] == 1
    with pytest.raises(BadData, match="all 2 training examples have choice 1 as the answer"):
        prepared(folder, [ROWS[0], ROWS[0] | {"question": "who"}])
