"""The one interface through which the rest of data/ gets tokens. What implements it has equal results to the byte:

    PlainTokenizer       calls the tokenizers library with whole texts: the reference
    `faster` of extras   may make one that encodes the same texts in less time, and raises TokensDiffer if it notices a difference
    ParallelTokenizer    runs either of them ahead of its reader, in a thread or in processes

`tests/unit/test_tokenizers.py` compares the first with the library over many kinds of tokenizers and random texts, and the extras the second with the first.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy
import pyarrow
import pyarrow.compute
from jinja2 import TemplateError

from snaketrain.config.schema import Data
from snaketrain.data.cells import ASSISTANT, BadData, read_messages
from snaketrain.labels import label_kind
from snaketrain.runtime.strict_json import JsonObject

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as LibraryTokenizer


TOKENS, TYPES = pyarrow.list_(pyarrow.int32()), pyarrow.list_(pyarrow.int8())
TEXTS = ("text", "text_pair", "target")


class Tokenizer(Protocol):
    def encode(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The batches in order, each with the columns of `token_schema` appended, made from the columns of TEXTS."""
        ...


class TokensDiffer(Exception):
    """A fast tokenizer's tokens are not those of the plain one: nothing that it has made may be used."""


class BatchTokenizer(ABC):
    """A tokenizer that works in this process, on one batch at a time."""

    @abstractmethod
    def encode_batch(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """The token columns alone."""

    def encode(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        return (with_columns(batch, self.encode_batch(texts_of(batch))) for batch in batches)


def token_schema(data: Data) -> pyarrow.Schema:
    more = [("token_type_ids", TYPES)] if data.has_token_types else [("target_ids", TOKENS)] if data.target else []
    more += [(name, TOKENS) for name in label_kind(data.label_kind).parser.token_lists]
    return pyarrow.schema([("input_ids", TOKENS), *more, ("truncated", pyarrow.bool_())])


def texts_of(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    return batch.select([name for name in batch.schema.names if name in TEXTS])


def with_columns(batch: pyarrow.RecordBatch, columns: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    for name in columns.schema.names:
        batch = batch.append_column(columns.schema.field(name), columns[name])
    return batch


# --- The reference: the tokenizers library encodes whole texts or pairs, which are truncated afterwards.


class PlainTokenizer(BatchTokenizer):
    """The library's own truncation would keep what it cuts off, in all combinations of a pair's parts, which is many times slower on long texts."""

    def __init__(self, library: LibraryTokenizer, data: Data):
        """`library` neither truncates nor pads."""
        self.library, self.schema, self.pair = library, token_schema(data), data.pair
        self.marks_answers = data.label is None  # by token types, since not every tokenizer distinguishes prompt and answer
        end = None if data.end_token is None else library.token_to_id(data.end_token)
        self.end = [] if end is None else [end]
        self.max_length = data.max_length

    def encode_batch(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        given = texts["text"].to_pylist()
        if self.pair:
            given = list(zip(given, texts["text_pair"].to_pylist(), strict=True))
        encodings = self.library.encode_batch_fast(given)
        kept = [self._kept(encoding) for encoding in encodings]
        ids = [[*map(encoding.ids.__getitem__, positions), *self.end] for encoding, positions in zip(encodings, kept, strict=True)]
        truncated = [len(positions) < len(encoding) for encoding, positions in zip(encodings, kept, strict=True)]
        columns = {"input_ids": pyarrow.array(ids, TOKENS), "truncated": pyarrow.array(truncated, pyarrow.bool_())}
        if self.pair:
            types = [[*map(self._types(encoding).__getitem__, positions)] for encoding, positions in zip(encodings, kept, strict=True)]
            columns["token_type_ids"] = pyarrow.array([row + [1] * len(self.end) for row in types], TYPES)
        return pyarrow.record_batch(columns, schema=self.schema)

    def _kept(self, encoding: Encoding) -> Sequence[int]:
        """The positions of the beginnings of the texts, and of the special tokens."""
        positions = range(len(encoding))
        if self.max_length is None or len(encoding) + len(self.end) <= self.max_length:
            return positions
        sequences = encoding.sequence_ids
        texts = [[position for position in positions if sequences[position] == text] for text in range(1 + self.pair)]
        room = self.max_length - len(self.end) - sequences.count(None)
        lengths = truncated_lengths([numpy.array(len(text)) for text in texts], room)
        cut_off = {position for text, length in zip(texts, lengths, strict=True) for position in text[length:]}
        return [position for position in positions if position not in cut_off]

    def _types(self, encoding: Encoding) -> list[int]:
        if not self.marks_answers:
            return encoding.type_ids
        # from the first token of the answer on
        return list(itertools.accumulate((text or 0 for text in encoding.sequence_ids), max))


def truncated_lengths(lengths: list[numpy.ndarray], room: int) -> list[numpy.ndarray]:
    """How much is kept of texts or pairs: a pair loses tokens of its longer text until both are equally long."""
    if len(lengths) == 1:
        return [numpy.minimum(lengths[0], room)]
    first, second = lengths
    shorter = numpy.minimum(numpy.minimum(first, second), room // 2)
    cut = [numpy.where(first <= second, shorter, room - shorter), numpy.where(first <= second, room - shorter, shorter)]
    return [numpy.where(first + second <= room, whole, part) for whole, part in zip(lengths, cut, strict=True)]


# --- Sources and targets of sequence to sequence models: two sequences for each example, each with special tokens and a length of its own.


class TargetTokenizer(BatchTokenizer):
    def __init__(self, source: BatchTokenizer, target: BatchTokenizer):
        self.source, self.target = source, target

    def encode_batch(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        source = self.source.encode_batch(texts.select(["text"]))
        target = self.target.encode_batch(pyarrow.record_batch({"text": texts["target"]}))
        columns = {"input_ids": source["input_ids"], "target_ids": target["input_ids"]}
        return pyarrow.record_batch(columns | {"truncated": pyarrow.compute.or_(source["truncated"], target["truncated"])})


def source_and_target(data: Data) -> tuple[Data, Data]:
    """The settings by which each of the two is encoded like a text by itself; only targets end with `end_token`."""
    source = data.model_copy(update={"target": None, "end_token": None})
    return source, data.model_copy(update={"target": None, "max_length": data.max_target_length})


# --- Chats.

Render: TypeAlias = Callable[..., tuple[list[str], list[list[tuple[int, int]]]]]
MARKS_ANSWERS = re.compile(r"\{%-?\s*generation\s*-?%\}")


class ChatTokenizer(BatchTokenizer):
    """Chats as the tokenizer's chat template writes them; types mark the tokens of the assistant, which are to be learnt.

    A template may mark them itself, by `{% generation %}`. Of others, a turn of the assistant is what the chat up to it has more than the prompt for
    it: so in training the model sees the very texts that it will be asked to continue.
    """

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
        whole, answers = self._written(messages), list[tuple[int, int]]()
        for number, message in enumerate(messages):
            if message["role"] == ASSISTANT:
                prompt = self._written(messages[:number], add_generation_prompt=True)
                through = self._written(messages[: number + 1])
                if not (whole.startswith(through) and through.startswith(prompt)):
                    raise BadData(
                        "data.messages: the chat template writes earlier turns differently once others follow, so that the assistant's part of a "
                        "chat cannot be told. Use a template that marks it by {% generation %}."
                    )
                answers.append((len(prompt), len(through)))
        return whole, answers

    def _written(self, messages: list[JsonObject], add_generation_prompt: bool = False) -> str:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
        assert isinstance(text, str), "it was not tokenised"
        return text
