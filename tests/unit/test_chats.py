"""Chats written by chat templates: their tokens and the assistant's part of them, against transformers and against each turn by itself."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from snaketrain.config.schema import Data
from snaketrain.data.cells import BadData
from snaketrain.data.loading.examples import Packed, TextExamples
from snaketrain.data.preparing import prepare
from snaketrain.data.surveying import check
from snaketrain.data.tokenizer_files import copy_tokenizer

WORDS = [
    "<pad>",
    "<unk>",
    "<|im_start|>",
    "<|im_end|>",
    "system",
    "user",
    "assistant",
    "what",
    "is",
    "a",
    "cat",
    "dog",
    "animal",
    "be",
    "short",
]
TURN = "{{ '<|im_start|> ' + message['role'] + ' ' }}"
PLAIN = (
    "{% for message in messages %}" + TURN + "{{ message['content'] + ' <|im_end|> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|> assistant ' }}{% endif %}"
)
MARKED = (
    "{% for message in messages %}"
    + TURN
    + "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + ' <|im_end|> ' }}"
    "{% endgeneration %}{% else %}{{ message['content'] + ' <|im_end|> ' }}{% endif %}{% endfor %}"
)
FORGETFUL = "{% for message in messages %}" + TURN + "{% if loop.last %}{{ message['content'] }}{% endif %}{% endfor %}"
REFUSING = "{{ raise_exception('no system messages') }}"
CHAT = [
    {"role": "system", "content": "be short"},
    {"role": "user", "content": "what is a cat"},
    {"role": "assistant", "content": "a animal"},
    {"role": "user", "content": "is a dog"},
    {"role": "assistant", "content": "dog is a animal"},
]
SHORT = [{"role": "user", "content": "cat"}, {"role": "assistant", "content": "dog"}]
SETTINGS = {"train": {"path": "x"}, "tokenizer": {"path": "x"}, "messages": "chat", "label": None, "dev_fraction": 0, "test_fraction": 0}


def write_tokenizer(folder, template: str | None) -> None:
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    if template:
        (folder / "chat_template.jinja").write_text(template)


@pytest.fixture
def prepared(tmp_path):
    def run(rows: list, template: str | None = PLAIN, **settings) -> tuple[TextExamples, dict, dict]:
        (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"chat": row}) + "\n" for row in rows))
        write_tokenizer(tmp_path / "source", template)
        copy_tokenizer(tmp_path / "source", tmp_path / "tokenizer")
        data = Data.model_validate(SETTINGS | settings)
        facts, issues = prepare(data, {"train": [tmp_path / "chats.jsonl"]}, tmp_path, tmp_path / "tokenizer", tmp_path)
        return TextExamples(tmp_path / "train.arrow", pad_token_id=0), facts["splits"]["train"], issues.counts

    return run


def answers(examples: TextExamples, number: int) -> list[str]:
    """The parts of a chat that are learnt, in words."""
    ids, types = (examples.rows(name, [number])[0] for name in ("input_ids", "token_type_ids"))
    marked = " ".join(WORDS[token] if learnt else "\n" for token, learnt in zip(ids, types, strict=True))
    return [part.strip() for part in marked.split("\n") if part.strip()]


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["plain", "marked"])
def test_only_the_assistants_messages_are_trained_on(prepared, template):
    examples, facts, _ = prepared([CHAT, SHORT], template, end_token="<|im_end|>")
    assert answers(examples, 0) == ["a animal <|im_end|>", "dog is a animal <|im_end|>"]
    assert answers(examples, 1) == ["dog <|im_end|>"]
    whole = " ".join(f"<|im_start|> {message['role']} {message['content']} <|im_end|>" for message in CHAT)
    assert [WORDS[token] for token in examples.rows("input_ids", [0])[0]] == whole.split()
    assert json.loads(examples.column("text")[0]) == CHAT
    assert facts["tokens"] == len(whole.split()) + 8


def test_a_long_chat_keeps_its_beginning(prepared):
    examples, facts, _ = prepared([CHAT, SHORT], max_length=16)
    assert facts["longest"] == 16 and facts["truncated"] == 1
    assert answers(examples, 0) == ["a animal"]


def test_packed_chats_keep_their_own_answers(prepared):
    examples, *_ = prepared([CHAT, SHORT, CHAT])
    batch = Packed(examples).batch([0, 1, 2])
    assert len(batch["input_ids"]) == 2 and int((batch["position_ids"] == 0)[batch["input_ids"] > 0].sum()) == 3
    assert int(batch["token_type_ids"].sum()) == 8 + 2 + 8


def test_chats_without_an_answer_are_dropped_and_counted(prepared):
    examples, _, issues = prepared([CHAT[:2], [], SHORT])
    assert len(examples) == 1 and (issues["no_answer"], issues["empty_text"]) == (1, 1)


@pytest.mark.parametrize(
    ("template", "settings", "message"),
    [
        (None, {}, "data.messages: the tokenizer has no chat template"),
        (FORGETFUL, {}, "writes earlier turns differently once others follow"),
        (REFUSING, {}, "the chat template refuses a chat: no system messages"),
        (PLAIN, {"end_token": "<pad>"}, "data.end_token: the chat template does not end answers with '<pad>'"),
    ],
)
def test_templates_that_cannot_be_used(prepared, template, settings, message):
    with pytest.raises(BadData, match=message):
        prepared([CHAT], template, **settings)


@pytest.mark.parametrize("cell", ["hello", ["hello"], [{"role": "user"}, {"content": "x"}], [{"role": "user", "content": 3}]])
def test_a_cell_that_is_not_a_list_of_messages_is_refused_with_its_place(tmp_path, cell):
    (tmp_path / "chats.jsonl").write_text(json.dumps({"chat": cell}) + "\n")
    (problem,) = check(Data.model_validate(SETTINGS), {"train": [tmp_path / "chats.jsonl"]})
    assert problem.startswith("data.messages: ") and "line 1 has in column 'chat'" in problem and "a text as its `role`" in problem
