"""Most words of a large text have been seen before: the library encodes each word once, and a text's tokens are those of its words.

Arrow does the work per word; Python sees a batch's distinct words, and the library those that are new, each by itself.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy
import pyarrow
from pyarrow.compute import binary_join_element_wise, match_substring_regex, split_pattern

from snaketrain.data.tokenization.tokenizer import TOKENS

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

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
