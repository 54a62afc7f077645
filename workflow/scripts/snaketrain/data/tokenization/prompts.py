"""Prompts whose answers are to be generated: the tokens that stand before the answers in the training data."""

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pyarrow
from jinja2 import TemplateError

from snaketrain.config.schema import Data
from snaketrain.data.cells import ASSISTANT
from snaketrain.data.sources.data_issues import BadData
from snaketrain.data.tokenization.chats import ChatTokenizer
from snaketrain.data.tokenization.files import load_library_tokenizer
from snaketrain.data.tokenization.opening import make_tokenizer
from snaketrain.data.tokenization.parallel import ParallelTokenizer
from snaketrain.data.tokenization.tokenizer import TOKENS, BatchTokenizer, PlainTokenizer, Tokenizer, source_and_target
from snaketrain.runtime.strict_json import JsonObject

ANSWER = "a"  # any text: what comes before it is the prompt


def open_prompt_tokenizer(folder: Path, data: Data, cores: int = 1, plain: bool = False) -> AbstractContextManager[Tokenizer]:
    """`data`: the settings of the training data."""
    return ParallelTokenizer(partial(make_prompt_tokenizer, folder, data, plain), cores)


def make_prompt_tokenizer(folder: Path, data: Data, plain: bool = False) -> BatchTokenizer:
    if data.target:
        return make_tokenizer(folder, source_and_target(data)[0], plain)
    if data.messages:
        return ChatPromptTokenizer(folder, data.model_copy(update={"max_length": None}), None)
    return PromptTokenizer(PlainTokenizer(load_library_tokenizer(folder, data), data), data)


class PromptTokenizer(BatchTokenizer):
    """Of texts that are to be continued, or answered as in the pairs of the training data. Their ends are cut off where pairs would be longer than
    `data.max_length`."""

    def __init__(self, plain: PlainTokenizer, data: Data):
        self.library, self.longest, self.pair = plain.library, plain.max_length, data.pair

    def encode_batch(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        found = [self._prompt(text) for text in texts["text"].to_pylist()]
        columns = {"input_ids": pyarrow.array([ids for ids, _ in found], TOKENS), "truncated": [cut for _, cut in found]}
        return pyarrow.record_batch(columns)

    def _prompt(self, text: str) -> tuple[list[int], bool]:
        encoding = self.library.encode(text, ANSWER) if self.pair else self.library.encode(text)
        sequences = encoding.sequence_ids
        last = max((place for place, sequence in enumerate(sequences) if sequence == 0), default=-1)
        end = sequences.index(1) if self.pair else last + 1
        more = 0 if self.longest is None else max(0, end - self.longest)
        return encoding.ids[: last + 1 - more] + encoding.ids[last + 1 : end], more > 0


class ChatPromptTokenizer(ChatTokenizer):
    """Of chats up to where the assistant is to speak. They are never cut off, since that would remove the question."""

    def encoded(self, messages: list[JsonObject]) -> tuple[list[int], list[int]]:
        try:
            text = self._beginning(messages)
        except (TemplateError, ValueError) as error:
            raise BadData(f"the chat template refuses a chat: {error} ({str(messages)[:200]})") from None
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids, [0] * len(ids)

    def _beginning(self, messages: list[JsonObject]) -> str:
        """As in the training: up to what the template marks, or what it writes as a prompt."""
        if not self.marks_answers:
            return self._written(messages, add_generation_prompt=True)
        text, answers = self._marked([*messages, {"role": ASSISTANT, "content": ANSWER}])
        return text[: answers[-1][0]]
