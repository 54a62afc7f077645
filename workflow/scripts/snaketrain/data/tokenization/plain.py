"""The reference: the tokenizers library encodes whole texts or pairs, which are truncated afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy
import pyarrow

from snaketrain.config.schema import Data
from snaketrain.data.tokenization.tokenizer import TOKENS, TYPES, BatchTokenizer, token_schema

if TYPE_CHECKING:  # a new process sets the library's number of threads before it imports it
    from tokenizers import Encoding
    from tokenizers import Tokenizer as LibraryTokenizer


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
