"""Most words of a large text have been seen before: a tokenizer gets each once, and the tokens of texts are put together from theirs.

Arrow does what is done for every word; Python sees the different words of a batch, and the tokenizer those that are new.
"""

import itertools
import re
from array import array
from typing import Any

import numpy
import pyarrow
from pyarrow.compute import binary_join_element_wise, invert, match_substring_regex, split_pattern

# What may stand beside a space at which a text is parted: letters of scripts that write spaces, and signs among them. None of these is
# or becomes, normalised, a space; so the tokenizer would meet single spaces there.
VISIBLE = "!-~À-ɏΑ-ωА-ҁא-תؠ-ي가-힣–—‘’“”"
START = "\x1f"  # before the first word of a text, of which many tokenizers make something else than of the same behind a space
ODD = rf"(?:^|[^{VISIBLE}]) | (?:[^{VISIBLE}]|$)|{START}"  # a text with this is tokenised as a whole
PROBE = "a bc B 1 2.5 . , (é) x_y don't -1 É ж 가 ש ي “ — !"
PLAIN = re.compile(f"[{VISIBLE}]")
REMEMBERED = 800_000  # characters of words: some 15 MB with their tokens
TOGETHER = 200  # words that the tokenizer gets in one text
PROOF = 200  # texts that are tokenised whole as well, before their words are trusted
SIZE = array("i").itemsize


class Words:
    """Tokens of texts, without those that are added to each, for a tokenizer that `parts_words` and cuts nothing."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.known: dict[str, bytes] = {}
        self.size = 0
        self.trusted: bool | None = None

    def tokens(self, texts: pyarrow.StringArray) -> pyarrow.ListArray:
        if self.trusted is None:
            some = texts[:PROOF]
            self.trusted = self._by_words(some) == self._whole(some)
        return self._by_words(texts) if self.trusted else self._whole(texts)

    def _by_words(self, texts: pyarrow.StringArray) -> pyarrow.ListArray:
        odd = match_substring_regex(texts, ODD)
        if not odd.true_count:
            return self._put_together(texts)
        return by_turns(odd, self._whole(texts.filter(odd)), self._put_together(texts.filter(invert(odd))))

    def _whole(self, texts: pyarrow.StringArray) -> pyarrow.ListArray:
        return lists(self._encoded(texts.to_pylist()))

    def _put_together(self, texts: pyarrow.StringArray) -> pyarrow.ListArray:
        words = split_pattern(binary_join_element_wise(START, texts, ""), " ")
        numbered = words.flatten().dictionary_encode()
        tokens = self._of_words(numbered.dictionary.to_pylist()).take(numbered.indices)
        return pyarrow.ListArray.from_arrays(tokens.offsets.take(words.offsets), tokens.values)

    def _of_words(self, words: list[str]) -> pyarrow.ListArray:
        if self.size > REMEMBERED:
            self.known, self.size = {}, 0
        new = [word for word in words if word not in self.known]
        self.size += sum(map(len, new))
        # only between plain characters can a tokenizer be trusted to part words that never stood beside each other
        inner = [word for word in new if word[0] != START and PLAIN.match(word[-1])]
        outer = [word for word in new if word[0] == START or not PLAIN.match(word[-1])]
        self.known.update(zip(inner, self._in_groups(inner), strict=True))
        self.known.update(zip(outer, self._encoded([word[1:] if word[0] == START else " " + word for word in outer]), strict=True))
        return lists(list(map(self.known.__getitem__, words)))

    def _encoded(self, texts: list[str]) -> list[bytes]:
        return [as_bytes(encoding.ids) for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def _in_groups(self, words: list[str]) -> list[bytes]:
        """Those of words behind a space; several at once, as a call takes longer than a word."""
        groups = [words[begin : begin + TOGETHER] for begin in range(0, len(words), TOGETHER)]
        found = []
        encoded = self.tokenizer.encode_batch(["".join(" " + word for word in group) for group in groups], add_special_tokens=False)
        for group, encoding in zip(groups, encoded, strict=True):
            spaces = numpy.cumsum([0, *(len(word) + 1 for word in group)])
            ends = numpy.searchsorted([begin for begin, _ in encoding.offsets], spaces) * SIZE
            tokens = as_bytes(encoding.ids)
            found += [tokens[begin:end] for begin, end in itertools.pairwise(ends.tolist())]
        return found


def parts_words(tokenizer: Any) -> bool:
    """Whether a space and what follows have tokens of their own, whatever stands before."""
    if tokenizer.pre_tokenizer is None or getattr(tokenizer.model, "dropout", None):
        return False
    if any(token.rstrip or " " in token.content for token in tokenizer.get_added_tokens_decoder().values()):
        return False
    pieces = [PROBE[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(PROBE)]
    return not any(" " in piece.removeprefix(" ") for piece in pieces)


def by_turns(mask: pyarrow.BooleanArray, where_true: pyarrow.Array, where_false: pyarrow.Array) -> pyarrow.Array:
    """Each in its order."""
    places = numpy.argsort(numpy.argsort(mask.to_numpy(zero_copy_only=False), kind="stable"))
    return pyarrow.concat_arrays([where_false, where_true]).take(pyarrow.array(places))


def as_bytes(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


def lists(rows: list[bytes]) -> pyarrow.ListArray:
    starts = pyarrow.array(numpy.cumsum([0, *map(len, rows)]) // SIZE, pyarrow.int32())
    return pyarrow.ListArray.from_arrays(starts, pyarrow.array(numpy.frombuffer(b"".join(rows), numpy.int32)))
