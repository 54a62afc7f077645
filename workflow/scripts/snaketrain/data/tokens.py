"""The columns that training needs of a batch of texts: their tokens."""

import itertools
from pathlib import Path
from typing import Any

import pyarrow

from snaketrain.data.single_texts import SingleTexts, added_tokens
from snaketrain.data.tokenizing import load_tokenizer
from snaketrain.data.words import as_bytes, lists, parts_words
from snaketrain.settings import Data

TYPES = pyarrow.list_(pyarrow.int8())


class Tokens:
    """The tokens of texts or pairs, and whether they were cut."""

    def __init__(self, tokenizer: Any, data: Data):
        """`tokenizer` cuts nothing."""
        end = [] if data.end_token is None else [tokenizer.token_to_id(data.end_token)]
        pair, added = len(data.text) == 2, added_tokens(tokenizer)
        if added and not pair and parts_words(tokenizer):
            self.tokeniser: Any = SingleTexts(tokenizer, data.max_length, added[0], added[1] + end)
        else:
            self.tokeniser = Whole(tokenizer, data.max_length, pair, data.label is None, end)
        self.schema = token_schema(data)

    def columns(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        return pyarrow.record_batch(self.tokeniser.columns(texts), schema=self.schema)


def load_tokens(folder: Path, data: Data) -> Tokens:
    """With the tokenizer of a folder."""
    return Tokens(load_tokenizer(folder, data), data)


def token_schema(data: Data) -> pyarrow.Schema:
    types = [("token_type_ids", TYPES)] if len(data.text) == 2 else []
    return pyarrow.schema([("input_ids", pyarrow.list_(pyarrow.int32())), *types, ("truncated", pyarrow.bool_())])


class Whole:
    """As the tokenizer does it with whole texts and pairs, which are cut afterwards.

    Its own way of cutting keeps what it cuts off, in all combinations of a pair's pieces: of long ones that takes many times as long.
    """

    def __init__(self, tokenizer: Any, longest: int | None, pair: bool, answers: bool, end: list[int]):
        self.tokenizer, self.pair, self.answers, self.end = tokenizer, pair, answers, end
        self.longest = longest and longest - len(end)

    def columns(self, batch: pyarrow.RecordBatch) -> dict[str, pyarrow.Array]:
        texts = batch["text"].to_pylist()
        if self.pair:
            texts = list(zip(texts, batch["text_pair"].to_pylist(), strict=True))
        encoded = self.tokenizer.encode_batch_fast(texts)
        cut = [self.longest is not None and len(encoding) > self.longest for encoding in encoded]
        kept = [self._kept(encoding) if is_cut else range(len(encoding)) for encoding, is_cut in zip(encoded, cut, strict=True)]
        ids = [[*map(encoding.ids.__getitem__, places), *self.end] for encoding, places in zip(encoded, kept, strict=True)]
        columns = {"input_ids": lists(list(map(as_bytes, ids))), "truncated": pyarrow.array(cut, pyarrow.bool_())}
        if self.pair:
            types = [[*map(self._types(encoding).__getitem__, places)] for encoding, places in zip(encoded, kept, strict=True)]
            columns["token_type_ids"] = pyarrow.array([some + [1] * len(self.end) for some in types], TYPES)
        return columns

    def _kept(self, encoding: Any) -> list[int]:
        """The places of the beginnings of both texts, and of what the tokenizer adds to them."""
        texts = encoding.sequence_ids
        first, second = ([place for place, text in enumerate(texts) if text == which] for which in (0, 1))
        of_first, of_second = shares(len(first), len(second), self.longest - texts.count(None))
        cut_off = {*first[of_first:], *second[of_second:]}
        return [place for place in range(len(texts)) if place not in cut_off]

    def _types(self, encoding: Any) -> list[int]:
        if not self.answers:
            return encoding.type_ids
        # from the first token of the answer on; not every tokenizer's own types tell prompt and answer apart
        return list(itertools.accumulate((text or 0 for text in encoding.sequence_ids), max))


def shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of a pair that needs more than `room` is kept: of the longer text less, until both are as long."""
    shorter = min(first, second, room // 2)
    return (shorter, room - shorter) if first <= second else (room - shorter, shorter)
