"""Composes texts, or pairs of them, from the tokens of their words: truncated, with the tokenizer's special tokens."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy
import pyarrow
from pyarrow.compute import and_, binary_join_element_wise, binary_length, invert, less, match_substring_regex, not_equal, split_pattern

from snaketrain.data.tokenizer import TOKENS, BatchTokenizer, PlainTokenizer, TokensDiffer, truncated_lengths

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer


def faster(plain: PlainTokenizer) -> FastTokenizer | None:
    """None if the tokenizer evidently does not encode word by word."""
    template = template_of(plain.library, 1 + plain.pair)
    if template is None or not splits_at_spaces(plain.library):
        return None
    return FastTokenizer(plain, _fitting(template, plain.marks_answers, plain.end))


# --- Most words of a large text have been seen before: the library encodes each word once, and a text's tokens are those of its words.
#
# Arrow does the work per word; Python sees a batch's distinct words, and the library those that are new, each by itself.

# What may stand beside a space at which a text is split: letters of scripts that write spaces, and punctuation among them. None of these
# is, or becomes by Unicode normalization, a space; so the tokenizer meets single spaces there.
VISIBLE = "!-~À-ɏΑ-ωА-ҁא-תؠ-ي가-힣–—‘’“”"
START = "\x1f"  # before the first word of a text, which many tokenizers encode differently from the same word after a space
PROBE = "a bc B 1 2.5 . , (é) x_y don't -1 É ж 가 ש ي “ — !"
CACHED_CHARACTERS = 1_600_000  # of words: some 30 MB with their tokens


class WordTokens:
    """The tokens of texts without special tokens, for a tokenizer that `splits_at_spaces` and truncates nothing."""

    def __init__(self, library: LibraryTokenizer):
        self.library, self.unsplittable = library, unsplittable(library)
        self.added = frozenset(library.get_added_tokens_decoder())
        self._forget()

    def _forget(self) -> None:
        self.numbers: dict[str, int] = {}  # of the words; below, the tokens of all
        self.ids, self.starts = array("i"), array("i", [0])
        self.special = bytearray()  # whether a word contains an added token, which may change what stands beside it
        self.size = 0

    def encode(self, texts: pyarrow.StringArray) -> pyarrow.ListArray:
        split = ~match_substring_regex(texts, self.unsplittable).to_numpy(zero_copy_only=False)
        words = split_pattern(binary_join_element_wise(START, texts.filter(split), ""), " ")
        distinct = words.flatten().dictionary_encode()
        numbers = self._numbers(distinct.dictionary.to_pylist())[distinct.indices]
        tokens = pyarrow.ListArray.from_arrays(numpy.array(self.starts), numpy.array(self.ids)).take(pyarrow.array(numbers))
        composed = pyarrow.ListArray.from_arrays(tokens.offsets.take(words.offsets), tokens.values)
        special = numpy.array(self.special, bool)[numbers]
        if special.any():
            ordinary = ~numpy.logical_or.reduceat(special, words.offsets[:-1])
            composed, split[split] = composed.filter(ordinary), ordinary
        if split.all():
            return composed
        return interleaved(split, composed, pyarrow.array(self._encoded(texts.filter(~split).to_pylist()), TOKENS))

    def _numbers(self, words: list[str]) -> numpy.ndarray:
        if self.size > CACHED_CHARACTERS:
            self._forget()
        new = [word for word in words if word not in self.numbers]
        self.size += sum(map(len, new))
        self.numbers.update(zip(new, range(len(self.numbers), len(self.numbers) + len(new)), strict=True))
        for tokens in self._encoded([word[1:] if word[0] == START else " " + word for word in new]):
            self.ids.extend(tokens)
            self.starts.append(len(self.ids))
            self.special.append(not self.added.isdisjoint(tokens))
        return numpy.fromiter(map(self.numbers.__getitem__, words), numpy.int32, len(words))

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.library.encode_batch_fast(texts, add_special_tokens=False)]


def unsplittable(library: LibraryTokenizer) -> str:
    """Matches texts to be encoded whole: beside a space is something that the tokenizer's normalizer turns into a space, or removes."""
    normalized = _normalizer(library)
    gone = "".join(character for character in visible() if not normalized(character).strip())
    beside = rf"[^{VISIBLE}]|[{re.escape(gone)}]" if gone else f"[^{VISIBLE}]"
    return rf"(?:^|{beside}) | (?:{beside}|$)|{START}"


@cache
def visible() -> list[str]:
    return re.findall(f"[{VISIBLE}]", "".join(map(chr, range(0x10000))))


def splits_at_spaces(library: LibraryTokenizer) -> bool:
    """Whether a space and what follows seem to have tokens of their own, whatever stands before."""
    if library.pre_tokenizer is None or getattr(library.model, "dropout", None):
        return False
    normalized = _normalizer(library)
    if any(token.rstrip or " " in token.content + normalized(token.content) for token in library.get_added_tokens_decoder().values()):
        return False
    pieces = [PROBE[start:end] for _, (start, end) in library.pre_tokenizer.pre_tokenize_str(PROBE)]
    return not any(" " in piece.removeprefix(" ") for piece in pieces)


def interleaved(mask: numpy.ndarray, where_true: pyarrow.Array, where_false: pyarrow.Array) -> pyarrow.Array:
    """The rows of both in the order of the mask."""
    positions = numpy.argsort(numpy.argsort(numpy.asarray(mask), kind="stable"))
    return pyarrow.concat_arrays([where_false, where_true]).take(pyarrow.array(positions))


def _normalizer(library: LibraryTokenizer) -> Callable[[str], str]:
    return library.normalizer.normalize_str if library.normalizer else str


# --- Whole examples: truncated, with special tokens, and compared with the plain tokenizer by samples.

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
