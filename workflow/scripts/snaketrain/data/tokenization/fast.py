"""Composes texts, or pairs of them, from the tokens of their words: truncated, with the tokenizer's special tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy
import pyarrow
from pyarrow.compute import and_, binary_length, invert, less, not_equal

from snaketrain.data.tokenization.plain import PlainTokenizer, truncated_lengths
from snaketrain.data.tokenization.tokenizer import BatchTokenizer, TokensDiffer
from snaketrain.data.tokenization.word_tokens import WordTokens, interleaved, splits_at_spaces

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

CHARACTERS_PER_TOKEN = 6  # of a text for each token that is kept; most languages' tokens have fewer
SPARE_TOKENS = 16  # beyond those that are kept, so that how the text continues cannot change them
SAMPLE_BYTES = 20_000  # of each batch's texts that the plain tokenizer encodes as well: some 1 % of a full one


class Template(NamedTuple):
    """The special tokens before, between and after texts, one part more than there are texts; their types, and those of the texts."""

    parts: list[list[int]]
    types: list[list[int]]
    text_types: list[int]


class FastTokenizer(BatchTokenizer):
    """No tokenizer guarantees that a text's tokens are those of its words, so a sample of each batch is compared with the plain tokenizer."""

    def __init__(self, plain: PlainTokenizer, template: Template):
        self.plain, self.template, self.words = plain, template, WordTokens(plain.library)
        self.names = ["text", "text_pair"][: len(template.text_types)]
        self.room = plain.max_length and plain.max_length - sum(map(len, template.parts))

    @classmethod
    def of(cls, plain: PlainTokenizer) -> FastTokenizer | None:
        """None if the tokenizer evidently does not encode word by word."""
        template = template_of(plain.library, 1 + plain.pair)
        if template is None or not splits_at_spaces(plain.library):
            return None
        return cls(plain, _fitting(template, plain.marks_answers, plain.end))

    def encode_batch(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        composed = self._composed(texts)
        rows = sample(texts, SAMPLE_BYTES)
        some, found = texts.take(rows), composed.take(rows)
        expected = self.plain.encode_batch(some)
        if not found.equals(expected):
            wrong = next(row for row in range(len(rows)) if found.slice(row, 1) != expected.slice(row, 1))
            raise TokensDiffer(f"the tokenizer encodes {some['text'][wrong].as_py()[:80]!r} differently from its words, one by one")
        return composed

    def _composed(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        texts = [self._tokens(batch[name]) for name in self.names]
        lengths = [rows.value_lengths().to_numpy() for rows in texts]
        total = sum(lengths)
        kept = lengths if self.room is None else truncated_lengths(lengths, self.room)
        positions, offsets = self._positions(texts, kept)
        ids = [*(rows.values.to_numpy() for rows in texts), *(numpy.array(part, numpy.int32) for part in self.template.parts)]
        columns = {
            "input_ids": pyarrow.ListArray.from_arrays(offsets, numpy.concatenate(ids)[positions]),
            "truncated": pyarrow.array(total > (total if self.room is None else self.room)),
        }
        if len(texts) == 2:
            kinds = [numpy.full(len(rows.values), kind, numpy.int8) for rows, kind in zip(texts, self.template.text_types, strict=True)]
            types = [*kinds, *(numpy.array(part, numpy.int8) for part in self.template.types)]
            columns["token_type_ids"] = pyarrow.ListArray.from_arrays(offsets, numpy.concatenate(types)[positions])
        return pyarrow.record_batch(columns, schema=self.plain.schema)

    def _tokens(self, texts: pyarrow.StringArray) -> pyarrow.ListArray:
        if self.room is None or len(self.names) == 2:  # truncating a pair needs the lengths of both texts
            return self.words.encode(texts)
        # most tokens of a long text would be cut off: encode its beginning first, and all of it where that is too short
        beginnings = pyarrow.array([_beginning(text, CHARACTERS_PER_TOKEN * self.room) for text in texts.to_pylist()], pyarrow.string())
        found = self.words.encode(beginnings)
        too_short = and_(not_equal(beginnings, texts), less(found.value_lengths(), self.room + SPARE_TOKENS))
        if not too_short.true_count:
            return found
        return interleaved(too_short, self.words.encode(texts.filter(too_short)), found.filter(invert(too_short)))

    def _positions(self, texts: list[pyarrow.ListArray], kept: list[numpy.ndarray]) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Where each row's tokens (a part, a text, a part, ...) are among those of all texts and then all parts; and each row's offset."""
        parts = list(map(len, self.template.parts))
        begins = numpy.cumsum([0, *(len(rows.values) for rows in texts), *parts])
        starts = numpy.empty((len(kept[0]), len(texts) + len(parts)), int)
        sizes = numpy.empty_like(starts)
        starts[:, 0::2], sizes[:, 0::2] = begins[len(texts) : -1], parts
        for number, rows in enumerate(texts):
            starts[:, 2 * number + 1] = begins[number] + rows.offsets.to_numpy()[:-1]
            sizes[:, 2 * number + 1] = kept[number]
        ends = numpy.cumsum(sizes)
        positions = numpy.arange(sizes.sum()) + numpy.repeat(starts.ravel() - (ends - sizes.ravel()), sizes.ravel())
        return positions, numpy.cumsum([0, *sizes.sum(axis=1)]).astype(numpy.int32)


def template_of(library: LibraryTokenizer, count: int) -> Template | None:
    """The special tokens around one text or two; None if the tokenizer changes the texts themselves."""
    alone, around = library.encode("a", add_special_tokens=False).ids, library.encode("a", "a" if count == 2 else None)
    sequences = around.sequence_ids
    if not alone or [text for text in sequences if text is not None] != [text for text in range(count) for _ in alone]:
        return None
    starts = [sequences.index(text) for text in range(count)]
    if any(around.ids[start : start + len(alone)] != alone for start in starts):
        return None
    parts = [slice(a, b) for a, b in zip([0, *(start + len(alone) for start in starts)], [*starts, len(sequences)], strict=True)]
    return Template(
        [around.ids[part] for part in parts], [around.type_ids[part] for part in parts], [around.type_ids[start] for start in starts]
    )


def sample(texts: pyarrow.RecordBatch, size: int) -> numpy.ndarray:
    """Random rows of so many bytes, at least one row; always the same of the same texts."""
    order = numpy.random.default_rng(texts.nbytes).permutation(len(texts))
    sizes = sum(binary_length(column).to_numpy() for column in texts.columns)
    return order[: max(1, numpy.searchsorted(numpy.cumsum(sizes[order]), size))]


def _fitting(template: Template, marks_answers: bool, end: list[int]) -> Template:
    """With the end token, and with types that mark the answer if they are to."""
    parts, types = [*template.parts[:-1], template.parts[-1] + end], [*template.types[:-1], template.types[-1] + [1] * len(end)]
    if not marks_answers:
        return Template(parts, types, template.text_types)
    return Template(parts, [[int(number == 2)] * len(part) for number, part in enumerate(parts)], list(range(len(template.text_types))))


def _beginning(text: str, longest: int) -> str:
    """Whole words of it."""
    end = text.rfind(" ", 0, longest) if len(text) > longest else -1
    return text if end < 0 else text[:end]
