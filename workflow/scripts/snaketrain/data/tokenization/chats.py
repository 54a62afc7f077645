"""Chats as the tokenizer's chat template writes them; types mark the tokens of the assistant, which are to be learnt.

A template may mark them itself, by `{% generation %}`. Of others, a turn of the assistant is what the chat up to it has more than the prompt for it: so in
training the model sees the very texts that it will be asked to continue.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pyarrow
from jinja2 import TemplateError

from snaketrain.config.schema import Data
from snaketrain.data.cells import ASSISTANT, read_messages
from snaketrain.data.sources.data_issues import BadData
from snaketrain.data.tokenization.tokenizer import TOKENS, TYPES, BatchTokenizer, token_schema
from snaketrain.runtime.strict_json import JsonObject

Render: TypeAlias = Callable[..., tuple[list[str], list[list[tuple[int, int]]]]]
MARKS_ANSWERS = re.compile(r"\{%-?\s*generation\s*-?%\}")


class ChatTokenizer(BatchTokenizer):
    def __init__(self, folder: Path, data: Data, end: int | None):
        """`end`: the token of `data.end_token`, which the template must write at the end of each answer."""
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.data, self.end, self.schema = data, end, token_schema(data)
        template = self.tokenizer.chat_template
        if not template:
            raise BadData(
                "data.messages: the tokenizer has no chat template. Name one that has a chat_template.jinja, or write one into its folder."
            )
        self.marks_answers = isinstance(template, str) and MARKS_ANSWERS.search(template) is not None

    def encode_batch(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        chats = [self.encoded(read_messages(text)) for text in texts["text"].to_pylist()]
        kept = slice(self.data.max_length)
        columns = {
            "input_ids": pyarrow.array([ids[kept] for ids, _ in chats], TOKENS),
            "token_type_ids": pyarrow.array([types[kept] for _, types in chats], TYPES),
            "truncated": pyarrow.array([len(ids[kept]) < len(ids) for ids, _ in chats], pyarrow.bool_()),
        }
        return pyarrow.record_batch(columns, schema=self.schema)

    def encoded(self, messages: list[JsonObject]) -> tuple[list[int], list[int]]:
        """The tokens of a chat, and for each whether the assistant writes it."""
        try:
            text, answers = self._marked(messages) if self.marks_answers else self._compared(messages)
        except (TemplateError, ValueError) as error:
            problem = str(error) if isinstance(error, BadData) else f"data.messages: the chat template refuses a chat: {error}"
            raise BadData(f"{problem} ({str(messages)[:200]})") from None
        encoding = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        types = [int(any(start <= place < end for start, end in answers)) for place, _ in encoding["offset_mapping"]]
        if self.end is not None and (self.end, 1) not in zip(encoding["input_ids"], types, strict=True):
            raise BadData(
                f"data.end_token: the chat template does not end answers with {self.data.end_token!r}. Name the token that it ends them with."
            )
        return encoding["input_ids"], types

    def _marked(self, messages: list[JsonObject]) -> tuple[str, list[tuple[int, int]]]:
        """The chat as text, and where in it the answers begin and end."""
        from transformers.utils.chat_template_utils import render_jinja_template

        # the mask of `apply_chat_template` would extend to the end of the chat where an answer ends with a space that has no token
        render: Render = render_jinja_template  # type: ignore[assignment]  # which declares to return a text
        template, special = self.tokenizer.chat_template, self.tokenizer.special_tokens_map
        texts, answers = render([messages], chat_template=template, return_assistant_tokens_mask=True, **special)
        return texts[0], answers[0]

    def _compared(self, messages: list[JsonObject]) -> tuple[str, list[tuple[int, int]]]:
        whole = self._written(messages)
        return whole, [self._answer(messages, number, whole) for number, message in enumerate(messages) if message["role"] == ASSISTANT]

    def _answer(self, messages: list[JsonObject], number: int, whole: str) -> tuple[int, int]:
        """Where in the whole chat the answer of a turn begins and ends."""
        prompt = self._written(messages[:number], add_generation_prompt=True)
        through = self._written(messages[: number + 1])
        if not (whole.startswith(through) and through.startswith(prompt)):
            raise BadData(
                "data.messages: the chat template writes earlier turns differently once others follow, so that the assistant's part of a chat "
                "cannot be told. Use a template that marks it by {% generation %}."
            )
        return len(prompt), len(through)

    def _written(self, messages: list[JsonObject], add_generation_prompt: bool = False) -> str:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
        assert isinstance(text, str), "it was not tokenised"
        return text
