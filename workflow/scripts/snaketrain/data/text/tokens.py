"""The columns that training needs of a batch of texts: their tokens."""

import itertools
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from snaketrain.config.schema import Data
from snaketrain.data.text.by_words import ByWords, Frame, frame_of, shares
from snaketrain.data.text.tokenizing import load_tokenizer
from snaketrain.data.text.words import as_bytes, lists, parts_words

TYPES = pyarrow.list_(pyarrow.int8())
COMPARED = 20_000  # bytes of each batch's texts that are tokenised in both ways: some 1 % of a full one


class WordsDiffer(Exception):
    """A text has other tokens than its words have: what was put together from words is not to be used."""


class Tokens:
    """The tokens of texts or pairs, and whether they were cut."""

    def __init__(self, tokenizer: Any, data: Data, whole: bool = False):
        """`tokenizer` cuts nothing. `whole`: never put the tokens of a text together from those of its words."""
        answers, end = data.label is None, [] if data.end_token is None else [tokenizer.token_to_id(data.end_token)]
        frame = frame_of(tokenizer, len(data.text))
        self.whole = Whole(tokenizer, data.max_length, len(data.text) == 2, answers, end)
        self.by_words = None
        if not whole and frame and parts_words(tokenizer):
            self.by_words = ByWords(tokenizer, data.max_length, _fitting(frame, answers, end))
        self.schema = token_schema(data)

    def columns(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        made = self._made(self.by_words or self.whole, texts)
        if self.by_words:
            self._compare(texts, made)
        return made

    def _compare(self, texts: pyarrow.RecordBatch, made: pyarrow.RecordBatch) -> None:
        """Some texts of each batch, so that what is wrong of any kind of text does not last."""
        rows = drawn(texts, COMPARED)
        some, found = texts.take(rows), made.take(rows)
        expected = self._made(self.whole, some)
        if not found.equals(expected):
            wrong = next(row for row in range(len(rows)) if found.slice(row, 1) != expected.slice(row, 1))
            raise WordsDiffer(f"the tokenizer makes something else of {some['text'][wrong].as_py()[:80]!r} than of its words, one by one")

    def _made(self, by: Any, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        return pyarrow.record_batch(by.columns(texts), schema=self.schema)


def load_tokens(folder: Path, data: Data, whole: bool = False) -> Tokens:
    """With the tokenizer of a folder."""
    return Tokens(load_tokenizer(folder, data), data, whole)


def drawn(texts: pyarrow.RecordBatch, size: int) -> numpy.ndarray:
    """Random rows with so many bytes, at least one row; the same ones of the same texts."""
    order = numpy.random.default_rng(texts.nbytes).permutation(len(texts))
    sizes = sum(pyarrow.compute.binary_length(column).to_numpy() for column in texts.columns)
    return order[: max(1, numpy.searchsorted(numpy.cumsum(sizes[order]), size))]


def token_schema(data: Data) -> pyarrow.Schema:
    types = [("token_type_ids", TYPES)] if len(data.text) == 2 else []
    return pyarrow.schema([("input_ids", pyarrow.list_(pyarrow.int32())), *types, ("truncated", pyarrow.bool_())])


def _fitting(frame: Frame, answers: bool, end: list[int]) -> Frame:
    """With the end token, and types that tell prompt and answer apart: not every tokenizer's own do."""
    parts, types = [*frame.parts[:-1], frame.parts[-1] + end], [*frame.types[:-1], frame.types[-1] + [1] * len(end)]
    if not answers:
        return Frame(parts, types, frame.text_types)
    return Frame(parts, [[int(number == 2)] * len(part) for number, part in enumerate(parts)], list(range(len(frame.text_types))))


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
        """The places of the beginnings of the texts, and of what the tokenizer adds to them."""
        whose, places = encoding.sequence_ids, range(len(encoding))
        texts = [[place for place in places if whose[place] == text] for text in (0, 1)[: 1 + self.pair]]
        left = shares([numpy.array(len(text)) for text in texts], self.longest - whose.count(None))
        cut_off = set().union(*(text[count:] for text, count in zip(texts, left, strict=True)))
        return [place for place in places if place not in cut_off]

    def _types(self, encoding: Any) -> list[int]:
        if not self.answers:
            return encoding.type_ids
        # from the first token of the answer on
        return list(itertools.accumulate((text or 0 for text in encoding.sequence_ids), max))
