"""The one interface through which the rest of data/ gets tokens. Three classes implement it, with equal results to the byte:

    PlainTokenizer     calls the tokenizers library with whole texts: the reference
    FastTokenizer      composes texts from the tokens of their words, and checks samples of every batch against the plain one
    ParallelTokenizer  runs either of them ahead of its reader, in a thread or in processes

`tests/unit/test_tokenizers.py` compares them over many kinds of tokenizers and random texts.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Protocol

import pyarrow

from snaketrain.config.schema import Data

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
    return pyarrow.schema([("input_ids", TOKENS), *more, ("truncated", pyarrow.bool_())])


def texts_of(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    return batch.select([name for name in batch.schema.names if name in TEXTS])


def with_columns(batch: pyarrow.RecordBatch, columns: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    for name in columns.schema.names:
        batch = batch.append_column(columns.schema.field(name), columns[name])
    return batch
