"""Most words of a large text have been seen before: a tokenizer gets each once, and the tokens of texts are put together from theirs.

Arrow does what is done for every word; Python sees the different words of a batch, and the tokenizer those that are new, each by
itself. No tokenizer promises that this is right, so `tokens.py` compares texts of every batch with what it makes of them as a whole.
"""

import re
from array import array
from functools import cache
from typing import Any

import numpy
import pyarrow
from pyarrow.compute import binary_join_element_wise, match_substring_regex, split_pattern

# What may stand beside a space at which a text is parted: letters of scripts that write spaces, and signs among them. None of these is,
# or becomes by a Unicode normal form, a space; so the tokenizer meets single spaces there.
VISIBLE = "!-~À-ɏΑ-ωА-ҁא-תؠ-ي가-힣–—‘’“”"
START = "\x1f"  # before the first word of a text, of which many tokenizers make something else than of the same behind a space
PROBE = "a bc B 1 2.5 . , (é) x_y don't -1 É ж 가 ש ي “ — !"
REMEMBERED = 1_600_000  # characters of words: some 30 MB with their tokens
SIZE = array("i").itemsize


class Words:
    """Tokens of texts, without those that are added to each, for a tokenizer that `parts_words` and cuts nothing."""

    def __init__(self, tokenizer: Any):
        self.tokenizer, self.odd = tokenizer, odd(tokenizer)
        self.added = frozenset(tokenizer.get_added_tokens_decoder())
        self._forget()

    def _forget(self) -> None:
        self.known: dict[str, int] = {}  # their numbers; below, the tokens of all
        self.ids, self.starts = array("i"), array("i", [0])
        self.special = bytearray()  # whether a word holds an added token, which may change what stands beside it
        self.size = 0

    def tokens(self, texts: pyarrow.StringArray) -> pyarrow.ListArray:
        parted = ~match_substring_regex(texts, self.odd).to_numpy(zero_copy_only=False)
        words = split_pattern(binary_join_element_wise(START, texts.filter(parted), ""), " ")
        counted = words.flatten().dictionary_encode()
        numbers = self._numbers(counted.dictionary.to_pylist())[counted.indices]
        tokens = pyarrow.ListArray.from_arrays(numpy.array(self.starts), numpy.array(self.ids)).take(pyarrow.array(numbers))
        made = pyarrow.ListArray.from_arrays(tokens.offsets.take(words.offsets), tokens.values)
        special = numpy.array(self.special, bool)[numbers]
        if special.any():
            fit = ~numpy.logical_or.reduceat(special, words.offsets[:-1])
            made, parted[parted] = made.filter(fit), fit
        if parted.all():
            return made
        return by_turns(parted, made, lists(list(map(as_bytes, self._encoded(texts.filter(~parted).to_pylist())))))

    def _numbers(self, words: list[str]) -> numpy.ndarray:
        if self.size > REMEMBERED:
            self._forget()
        new = [word for word in words if word not in self.known]
        self.size += sum(map(len, new))
        self.known.update(zip(new, range(len(self.known), len(self.known) + len(new)), strict=True))
        for tokens in self._encoded([word[1:] if word[0] == START else " " + word for word in new]):
            self.ids.extend(tokens)
            self.starts.append(len(self.ids))
            self.special.append(not self.added.isdisjoint(tokens))
        return numpy.fromiter(map(self.known.__getitem__, words), numpy.int32, len(words))

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def odd(tokenizer: Any) -> str:
    """Matches texts that are tokenised as a whole: with something beside a space of which the tokenizer's normalizer makes a space, or nothing."""
    normalised = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str
    gone = "".join(character for character in visible() if not normalised(character).strip())
    beside = rf"[^{VISIBLE}]|[{re.escape(gone)}]" if gone else f"[^{VISIBLE}]"
    return rf"(?:^|{beside}) | (?:{beside}|$)|{START}"


@cache
def visible() -> list[str]:
    return [character for character in map(chr, range(0x10000)) if re.match(f"[{VISIBLE}]", character)]


def parts_words(tokenizer: Any) -> bool:
    """Whether a space and what follows seem to have tokens of their own, whatever stands before."""
    if tokenizer.pre_tokenizer is None or getattr(tokenizer.model, "dropout", None):
        return False
    normalised = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str
    if any(token.rstrip or " " in token.content + normalised(token.content) for token in tokenizer.get_added_tokens_decoder().values()):
        return False
    pieces = [PROBE[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(PROBE)]
    return not any(" " in piece.removeprefix(" ") for piece in pieces)


def by_turns(mask: Any, where_true: pyarrow.Array, where_false: pyarrow.Array) -> pyarrow.Array:
    """Each in its order."""
    places = numpy.argsort(numpy.argsort(numpy.asarray(mask), kind="stable"))
    return pyarrow.concat_arrays([where_false, where_true]).take(pyarrow.array(places))


def as_bytes(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


def lists(rows: list[bytes]) -> pyarrow.ListArray:
    starts = pyarrow.array(numpy.cumsum([0, *map(len, rows)]) // SIZE, pyarrow.int32())
    return pyarrow.ListArray.from_arrays(starts, pyarrow.array(numpy.frombuffer(b"".join(rows), numpy.int32)))
