"""Words with tags in files: the same rows from all formats, tokens as transformers makes them, and bad rows with file and line."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData, DataIssues
from snaketrain.data.loading.examples import TextExamples
from snaketrain.data.preparing import prepare
from snaketrain.data.surveying import check
from snaketrain.data.tokenizer_files import copy_tokenizer, make_tokenizer
from snaketrain.extras.token_classification.task import TokenClassification, given, learnt

SENTENCES = [
    (["Ann", "unbelievably", "visits", "New", "York"], ["B-PER", "O", "O", "B-LOC", "I-LOC"]),
    (["#", "\u200b", "it", "rains"], ["O", "O", "O", "O"]),
    (["Bob"], ["B-PER"]),
    (["New", "Yorkers", "like", "Ann"], ["B-LOC", "I-LOC", "O", "B-PER"]),
]
NAMES = ["O", "B-PER", "B-LOC", "I-LOC"]
WORDS = {"text": "words", "label": "tags", "label_kind": "tags", "max_length": 32, "dev_fraction": 0, "test_fraction": 0}


def save_tokenizer(folder: Path, kind: str = "pieces") -> Path:
    """Trained on other words, so that some of SENTENCES have several tokens."""
    pieces = kind == "pieces"
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>") if pieces else models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer() if pieces else pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pieces:
        from tokenizers.normalizers import BertNormalizer

        tokenizer.normalizer = BertNormalizer(lowercase=False)
    given = {"special_tokens": ["<pad>", "<unk>", "<s>", "</s>"], "vocab_size": 320, "show_progress": False}
    trainer = (
        trainers.WordPieceTrainer(**given) if pieces else trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **given)
    )
    tokenizer.train_from_iterator(["Ann visits it", "New York likes Bob", "believe rains in York # ers"] * 20, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)])
    (folder / "original").mkdir(parents=True)
    tokenizer.save(str(folder / "original/tokenizer.json"))
    copy_tokenizer(folder / "original", folder / "tokenizer")
    return folder


def data_of(**changes) -> Data:
    return Data.model_validate({"train": {"path": "x"}, "tokenizer": {"path": "x"}} | WORDS | changes)


def prepared(folder: Path, file: str, **changes) -> tuple[pyarrow.Table, dict, DataIssues]:
    facts, issues = prepare(data_of(**changes), {"train": [folder / file]}, folder, folder / "tokenizer", folder)
    return pyarrow.ipc.open_file(pyarrow.memory_map(str(folder / "train.arrow"))).read_all(), facts, issues


def conll(sentences, separator: str = "\t") -> str:
    return "\n".join("".join(f"{word}{separator}{tag}\n" for word, tag in zip(*each, strict=True)) for each in sentences)


def jsonl(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def folder(tmp_path) -> Path:
    return save_tokenizer(tmp_path)


def test_all_formats_have_the_same_rows(folder):
    rows = [{"words": words, "tags": tags} for words, tags in SENTENCES]
    numbered = [row | {"tags": [NAMES.index(tag) for tag in row["tags"]]} for row in rows]
    (folder / "lists.jsonl").write_text(jsonl(rows))
    (folder / "texts.jsonl").write_text(jsonl({name: " ".join(parts) for name, parts in row.items()} for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(numbered), folder / "numbers.parquet")
    (folder / "tabs.conll").write_text("# id = 7\n" + conll(SENTENCES) + "\n\n# another\n")
    (folder / "spaces.txt").write_text("-DOCSTART- -X- O\n\n" + conll(SENTENCES, " x "))
    ways = {
        "lists.jsonl": {}, "texts.jsonl": {}, "numbers.parquet": {"labels": dict(enumerate(NAMES))}, "tabs.conll": {},
        "spaces.txt": {"format": "conll", "columns": ["token", "pos", "ner"], "text": "token", "label": "ner"},
    }  # fmt: skip
    found = {}
    for file, changes in ways.items():
        table, facts, issues = prepared(folder, file, **changes)
        found[file] = [
            (row["text"], [facts["label_names"][number] for number in row["label"]], row["word_starts"]) for row in table.to_pylist()
        ]
        assert [(text.split(" "), tags) for text, tags, _ in found[file]] == SENTENCES
        assert facts["splits"]["train"]["label_counts"][facts["label_names"].index("O")] == 3 and issues.counts.keys() <= {
            "single_row_class"
        }
    assert all(each == found["lists.jsonl"] for each in found.values())
    lines = [row["line"] for row in prepared(folder, "tabs.conll")[0].to_pylist()]
    assert lines == [2, 8, 13, 15]


@pytest.mark.parametrize("kind", ["pieces", "bytes"])
@pytest.mark.parametrize("max_length", [32, 5])
def test_tokens_and_first_tokens_are_those_of_transformers(tmp_path, kind, max_length):
    folder = save_tokenizer(tmp_path, kind)
    texts = pyarrow.record_batch({"text": [" ".join(words) for words, _ in SENTENCES]})
    made = make_tokenizer(folder / "tokenizer", data_of(max_length=max_length)).encode_batch(texts).to_pydict()
    if kind == "bytes":  # as transformers demands for words
        content = json.loads((folder / "original/tokenizer.json").read_text())
        content["pre_tokenizer"]["add_prefix_space"] = True
        (folder / "original/tokenizer.json").write_text(json.dumps(content))
    reference = PreTrainedTokenizerFast(tokenizer_file=str(folder / "original/tokenizer.json"), pad_token="<pad>")
    several = 0
    for number, (words, _) in enumerate(SENTENCES):
        wanted = reference(words, is_split_into_words=True, truncation=True, max_length=max_length)
        of_words = wanted.word_ids()
        starts = [of_words.index(word) if word in of_words else -1 for word in range(len(words))]
        assert (made["input_ids"][number], made["word_starts"][number]) == (wanted["input_ids"], starts)
        assert made["truncated"][number] == (len(reference(words, is_split_into_words=True)["input_ids"]) > max_length)
        several += len(set(of_words)) < len(of_words) - 1
    assert several, "some word has several tokens"


def test_only_words_with_a_token_are_learnt(folder):
    (folder / "rows.conll").write_text(conll(SENTENCES))
    _, facts, issues = prepared(folder, "rows.conll", max_length=6, labels={name: name for name in NAMES})
    batch = TextExamples(folder / "train.arrow", 0).batch([1, 0])
    assert given(batch).tolist() == [[0, 0, 0, 0, -100], [1, 0, 0, 2, 3]]
    assert batch["word_starts"][0].tolist()[:2] == [1, -1], "a word of no visible character has no token"
    starts = batch["word_starts"]
    assert (starts[1] == -1).any() and issues.counts["truncated"] >= 1
    assert torch.equal(learnt(batch), torch.where(starts >= 0, given(batch), -100))


def test_a_named_loss_is_the_sum_over_words(folder):
    (folder / "rows.conll").write_text(conll(SENTENCES))
    _, facts, _ = prepared(folder, "rows.conll", max_length=6, labels={name: name for name in NAMES})
    batch = TextExamples(folder / "train.arrow", 0).batch([1, 0, 2])
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = {"use": "transformers.BertForTokenClassification", "arguments": small}
    losses = []
    for arguments in ({}, {"loss": {"use": "torch.nn.CrossEntropyLoss"}}, {"loss": {"use": "torch.nn.MultiMarginLoss"}}):
        torch.manual_seed(0)
        task = TokenClassification(**arguments)
        modules = task.build(model, None, facts | {"vocab_size": 320, "pad_token_id": 0})
        modules["model"].eval()
        losses.append(task.training_step(modules, batch).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and losses[2] != pytest.approx(losses[0], rel=0.1)


BAD = [
    (jsonl([{"words": ["a", "b"], "tags": ["O"]}]), "jsonl", "rows.jsonl, line 1: column 'tags' cannot be read (1 tags for 2 words)"),
    (jsonl([{"words": ["a"], "tags": ["O", "O"]}]), "jsonl", "(2 tags for 1 words)"),
    (jsonl([{"words": ["a"], "tags": ["S-PER"]}]), "jsonl", "tag 1, 'S-PER', is neither O nor B-TYPE nor I-TYPE"),
    (jsonl([{"words": ["a"], "tags": [3]}]), "jsonl", "data.labels can name tags, such as numbers"),
    (jsonl([{"words": {"a": 1}, "tags": ["O"]}]), "jsonl", "an object"),
    ("a\tO\n\nb\n", "conll", "rows.conll, line 3: ['b'] instead of the 2 columns words, tags. Give each word a tag"),
    ("a O\n# b c\nc O O\n", "conll", "rows.conll, line 3: ['c', 'O', 'O']"),
]


@pytest.mark.parametrize(("content", "ending", "message"), BAD, ids=[message[:40] for _, _, message in BAD])
def test_bad_rows_are_refused_with_file_and_line(folder, content, ending, message):
    (folder / f"rows.{ending}").write_text(content)
    assert message in "\n".join(check(data_of(), {"train": [folder / f"rows.{ending}"]}))
    with pytest.raises(BadData) as refused:
        prepared(folder, f"rows.{ending}")
    assert message in str(refused.value) and "line" in str(refused.value)


def test_odd_rows_are_counted(folder):
    rows = "a\tB-PER\nb\tI-LOC\n\na\tO\nc\tI-PER\n\nAnn\tB-PER\n\tO\nNew York\tO\n\n\tO\n\n"
    (folder / "rows.conll").write_text(rows + conll(SENTENCES))
    table, _, issues = prepared(folder, "rows.conll")
    assert issues.examples["odd_label"] == [
        "rows.conll, line 1: tag 2, I-LOC, continues no entity, which is not IOB2",
        "rows.conll, line 4: tag 2, I-PER, continues no entity, which is not IOB2",
        "rows.conll, line 7: tag 2, O, is that of an empty word",
    ]
    assert issues.examples["empty_text"] == ["rows.conll, line 11"]
    assert (table["text"][2].as_py(), table["word_starts"][2].as_py()[1]) == ("Ann  New\u00a0York", -1)


def test_a_single_tag_teaches_nothing(folder):
    (folder / "rows.conll").write_text("a\tO\nb\tO\n\nc\tO\n")
    with pytest.raises(BadData, match="all 2 training examples have the tag O alone"):
        prepared(folder, "rows.conll")
