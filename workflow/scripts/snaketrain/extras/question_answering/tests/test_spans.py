"""Questions in files, their windows as transformers makes them, places of answers, the best parts of a context, and the figures by other definitions."""

import json
import random
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torchmetrics.functional.text import squad
from transformers import BertConfig, BertForQuestionAnswering, PreTrainedTokenizerFast

from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData, DataIssues
from snaketrain.data.loading.examples import TextExamples
from snaketrain.data.preparing import prepare
from snaketrain.data.surveying import check
from snaketrain.data.tokenizer_files import copy_tokenizer
from snaketrain.extras.question_answering.answers import agreement, normalized
from snaketrain.extras.question_answering.label_kind import AnswersHead
from snaketrain.extras.question_answering.task import QuestionAnswering, best_spans, targets
from snaketrain.tasks.text_classification import INPUTS

CONTEXT = "  Ann Müller unbelievably visits 東京 and New York, where Bob rains; the naïve café opens at noon. Ann visits it again tomorrow."
ASKED = [("who visits", ["Ann Müller", "Ann"]), ("where", ["New York"]), ("when", ["tomorrow"]), ("why", []), ("what", ["東京"])]
COLUMNS = {"text": ["question", "context"], "label": "answers", "label_kind": "answers", "max_length": 24, "stride": 7, "dev_fraction": 0, "test_fraction": 0}  # fmt: skip


def in_squad(asked=ASKED, context: str = CONTEXT) -> list[dict]:
    return [
        {"question": question, "context": context, "answers": {"text": texts, "answer_start": [context.index(text) for text in texts]}}
        for question, texts in asked
    ]


def in_lists(rows: list[dict]) -> list[dict]:
    pairs = ([{"text": t, "start": s} for t, s in zip(*row["answers"].values(), strict=True)] for row in rows)
    return [row | {"answers": answers} for row, answers in zip(rows, pairs, strict=True)]


def jsonl(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module", params=["pieces", "bytes"])
def folder(request, tmp_path_factory) -> Path:
    """With a tokenizer that divides words into several tokens, and characters too if it is one of bytes."""
    folder, pieces = tmp_path_factory.mktemp(request.param), request.param == "pieces"
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>") if pieces else models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer() if pieces else pre_tokenizers.ByteLevel(add_prefix_space=False)
    given = {"special_tokens": ["<pad>", "<unk>", "<s>", "</s>"], "vocab_size": 300, "show_progress": False}
    trainer = (
        trainers.WordPieceTrainer(**given) if pieces else trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **given)
    )
    tokenizer.train_from_iterator(["Ann visits it again", "New York likes Bob", "who where when why what", "café 東京"] * 20, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    (folder / "original").mkdir()
    tokenizer.save(str(folder / "original/tokenizer.json"))
    copy_tokenizer(folder / "original", folder / "tokenizer")
    return folder


def data_of(**changes) -> Data:
    return Data.model_validate({"train": {"path": "x"}, "tokenizer": {"path": "x"}} | COLUMNS | changes)


def prepared(folder: Path, file: str, **changes) -> tuple[pyarrow.Table, dict, DataIssues]:
    facts, issues = prepare(data_of(**changes), {"train": [folder / file]}, folder, folder / "tokenizer", folder)
    return pyarrow.ipc.open_file(pyarrow.memory_map(str(folder / "train.arrow"))).read_all(), facts, issues


def task() -> QuestionAnswering:
    made = QuestionAnswering()
    made.padding, made.inputs = 0, INPUTS
    return made


def test_all_formats_have_the_same_rows(folder):
    rows = in_squad()
    (folder / "squad.jsonl").write_text(jsonl(rows))
    (folder / "lists.jsonl").write_text(jsonl(in_lists(rows)))
    (folder / "texts.jsonl").write_text(jsonl(row | {"answers": json.dumps(row["answers"])} for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "squad.parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(in_lists(rows)), folder / "lists.parquet")
    tables = [prepared(folder, name)[0] for name in ("squad.jsonl", "lists.jsonl", "texts.jsonl", "squad.parquet", "lists.parquet")]
    assert all(table.equals(tables[0]) for table in tables) and len(tables[0]) == len(ASKED)
    assert tables[0]["text_pair"][0].as_py() == CONTEXT, "with its first spaces"
    _, facts, _ = prepared(folder, "squad.jsonl")
    assert facts["splits"]["train"]["label_counts"] == [4, 1] and facts["label_names"] == []


@pytest.mark.parametrize(("max_length", "stride"), [(24, 7), (16, 3), (40, 1), (512, None)])
def test_windows_are_those_of_transformers(folder, max_length, stride):
    (folder / "rows.jsonl").write_text(jsonl(in_squad()))
    prepared(folder, "rows.jsonl", max_length=max_length, stride=stride)
    reference = PreTrainedTokenizerFast(tokenizer_file=str(folder / "original/tokenizer.json"), pad_token="<pad>")
    reference.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    wanted = reference(
        [question for question, _ in ASKED], [CONTEXT] * len(ASKED), truncation="only_second", max_length=max_length, stride=stride or 170,
        return_overflowing_tokens=True, return_offsets_mapping=True, padding=True, return_tensors="pt",
    )  # fmt: skip
    batch = TextExamples(folder / "train.arrow", 0).batch(range(len(ASKED)))
    windows = task().windows(batch)
    assert windows.question.tolist() == wanted["overflow_to_sample_mapping"].tolist() and task().count(batch) == len(windows.question)
    for name, values in windows.inputs.items():
        assert torch.equal(values, wanted[name]), name
    for number, offsets in enumerate(wanted["offset_mapping"].tolist()):
        of_context = [offset if text == 1 else [-1, -1] for offset, text in zip(offsets, wanted.sequence_ids(number), strict=True)]
        found = torch.stack([windows.begins[number], windows.ends[number]], 1)
        assert found.clamp(min=-1).tolist() == of_context


def test_targets_hold_the_answer_or_are_the_first_token(folder):
    (folder / "rows.jsonl").write_text(jsonl(in_squad()))
    prepared(folder, "rows.jsonl")
    batch = TextExamples(folder / "train.arrow", 0).batch(range(len(ASKED)))
    windows = task().windows(batch)
    found = set()
    for number, (begin, end) in enumerate(targets(windows, batch["labels"]).tolist()):
        question = int(windows.question[number])
        answer = ASKED[question][1][0] if ASKED[question][1] else None
        start = CONTEXT.index(answer) if answer else 0
        inside = [place for place, at in enumerate(windows.begins[number].tolist()) if at >= 0]
        characters = range(int(windows.begins[number, inside[0]]), int(windows.ends[number, inside[-1]]))
        if answer and start in characters and start + len(answer) - 1 in characters:
            assert CONTEXT[windows.begins[number, begin] : windows.ends[number, end]].strip() == answer
            found.add(question)
        else:
            assert begin == end == 0
    assert found == {0, 1, 2, 4} and len(windows.question) > 2 * len(ASKED)


def test_the_loss_of_a_window_is_the_same_beside_a_longer_one(folder):
    (folder / "rows.jsonl").write_text(jsonl(in_squad(ASKED[1:2], "at New York") + in_squad(ASKED[1:2])))
    prepared(folder, "rows.jsonl")
    examples, answering = TextExamples(folder / "train.arrow", 0), task()
    torch.manual_seed(0)
    config = BertConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    answering.head, model = AnswersHead(), BertForQuestionAnswering(config).eval()
    alone, both = (answering.spans({"model": model}, examples.batch(numbers)) for numbers in ([0], [0, 1]))
    assert alone[1].shape[1] < both[1].shape[1]
    assert both[2][0].item() == pytest.approx(alone[2].item(), rel=1e-5)


def test_the_best_part_is_that_of_all_pairs():
    torch.manual_seed(0)
    logits, of_context = torch.randn(30, 12, 2), torch.rand(30, 12) < 0.7
    scores, first, last = best_spans(logits, of_context, 4)
    for window in range(30):
        places = [place for place in range(12) if of_context[window, place]]
        pairs = {(a, b): float(logits[window, a, 0] + logits[window, b, 1]) for a in places for b in places if a <= b < a + 4}
        assert (int(first[window]), int(last[window])) == max(pairs, key=pairs.get) and scores[window] == pytest.approx(max(pairs.values()))


@pytest.mark.parametrize(("threshold", "expected"), [(None, "New York"), (0.0, ""), (9.0, "New York")])
def test_an_answer_comes_from_any_window(folder, threshold, expected):
    (folder / "rows.jsonl").write_text(jsonl(in_squad(ASKED[1:2])))
    prepared(folder, "rows.jsonl")
    batch = TextExamples(folder / "train.arrow", 0).batch([0])
    answering = task()
    answering.threshold, windows = threshold, answering.windows(batch)
    logits = torch.zeros(*windows.begins.shape, 2)
    for window, ends in enumerate(targets(windows, batch["labels"]).tolist()):
        logits[window, 0] = 4.0  # no answer
        if ends != [0, 0]:
            for end, place in enumerate(ends):
                logits[window, place, end] = 1.5
    assert answering.answers(logits, windows, batch["context"]) == [expected]


# --- figures


WORDS = ["The", "the", "cat", "Cat's", "a", "an", "New-York", "1,000", "(sat)", "É", "on", "mat.", "", "theme"]


def test_agreement_is_that_of_squad():
    draw = random.Random(0)
    for _ in range(400):
        predicted, *answers = (" ".join(draw.choices(WORDS, k=draw.randint(1, 4))) for _ in range(draw.randint(2, 4)))
        if not all(map(normalized, (predicted, *answers))):
            continue
        theirs = squad(
            {"prediction_text": predicted, "id": "x"}, {"answers": {"text": answers, "answer_start": [0] * len(answers)}, "id": "x"}
        )
        assert agreement(predicted, answers) == pytest.approx((float(theirs["exact_match"]) / 100, float(theirs["f1"]) / 100))


@pytest.mark.parametrize(
    ("predicted", "answers", "exact", "overlap"),
    [
        ("The Eiffel Tower!", ["eiffel  tower"], 1, 1),
        ("the big cat", ["cat", "a small cat"], 0, 2 / 3),
        ("", [], 1, 1),
        ("cat", [], 0, 0),
        ("", ["cat"], 0, 0),
        ("the", [], 1, 1),
        ("cat cat", ["cat"], 0, 2 / 3),
    ],
)
def test_agreement_of_known_pairs(predicted, answers, exact, overlap):
    assert agreement(predicted, answers) == pytest.approx((exact, overlap))


# --- bad rows


BAD = [
    ([{"text": "Bob", "start": 3}], "answer 1, 'Bob', is not at character 3 of the context, where 'nn ' is; it begins at 56"),
    ([{"text": "Ann", "start": 2}, {"text": "Zoe", "start": 999}], "answer 2, 'Zoe', is not at character 999 of the context, where nothing is, which has it nowhere"),
    ([{"text": "Ann", "start": -1}], "where nothing is"),
    ([{"text": " ", "start": 0}], "answer 1 is empty; the list of a question without an answer is empty"),
    ([{"text": "Ann"}], "answer 1 has not a text and a whole number as its start"),
    ({"text": ["Ann"], "answer_start": []}, "1 texts with 0 starts"),
    ({"text": "Ann", "answer_start": 2}, "is neither {text: [...], answer_start: [...]} nor a list of {text, start}"),
    ("Ann", "Expecting value: line 1 column 1"),
]  # fmt: skip


@pytest.mark.parametrize(("answers", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_bad_rows_are_refused_with_file_and_line(folder, answers, message):
    row = in_squad()[0]
    (folder / "rows.jsonl").write_text(jsonl([row, row | {"answers": answers}]))
    assert message in "\n".join(check(data_of(), {"train": [folder / "rows.jsonl"]}))
    with pytest.raises(BadData) as refused:
        prepared(folder, "rows.jsonl")
    assert message in str(refused.value) and "rows.jsonl, line 2: column 'answers' cannot be read" in str(refused.value)


def test_what_is_cut_is_counted(folder):
    long = CONTEXT[2:110]
    rows = in_squad() + in_squad([("where " * 30, ["Ann"]), ("what", [long])]) + [in_squad()[0] | {"answers": None}]
    (folder / "rows.jsonl").write_text(jsonl(rows))
    table, _, issues = prepared(folder, "rows.jsonl")
    assert len(table) == 7 and issues.counts["missing_label"] == 1
    assert issues.examples["cut_label"] == ["rows.jsonl, line 7: what"], "no window has the whole answer"
    assert issues.counts["truncated"] == 1 and issues.examples["truncated"][0].startswith("rows.jsonl, line 6: where")
    batch = TextExamples(folder / "train.arrow", 0).batch([6])
    assert targets(task().windows(batch), batch["labels"]).eq(0).all()


def test_settings_without_room_or_without_an_answer_are_refused(folder):
    (folder / "rows.jsonl").write_text(jsonl(in_squad()))
    with pytest.raises(BadData, match="data.stride: windows that overlap by 11 tokens do not move forward"):
        prepared(folder, "rows.jsonl", stride=11)
    (folder / "rows.jsonl").write_text(jsonl(in_squad([("why", []), ("who", [])])))
    with pytest.raises(BadData, match="all 2 training examples have no answer"):
        prepared(folder, "rows.jsonl")
