"""Encodes sentences that are given as words, each by itself, and tells where the first token of each word is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow

from snaketrain.data.tokenizer import TOKENS, PlainTokenizer
from snaketrain.extras.token_classification import NO_TOKEN, SPACE

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as LibraryTokenizer

    from snaketrain.config.schema import Data


class WordTokenizer(PlainTokenizer):
    def __init__(self, library: LibraryTokenizer, data: Data):
        super().__init__(with_space_before_words(library), data)

    def encode_batch(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        sentences = [text.split(SPACE) for text in texts["text"].to_pylist()]
        encodings = self.library.encode_batch(sentences, is_pretokenized=True)
        kept = [list(self._kept(encoding)) for encoding in encodings]
        starts = [first_tokens(*each) for each in zip(encodings, kept, map(len, sentences), strict=True)]
        columns = {
            "input_ids": pyarrow.array([[e.ids[place] for place in places] for e, places in zip(encodings, kept, strict=True)], TOKENS),
            "word_starts": pyarrow.array(starts, TOKENS),
            "truncated": pyarrow.array([len(places) < len(e) for e, places in zip(encodings, kept, strict=True)], pyarrow.bool_()),
        }
        return pyarrow.record_batch(columns, schema=self.schema)


def first_tokens(encoding: Encoding, kept: list[int], words: int) -> list[int]:
    """For each word the place of its first token among those that are kept; NO_TOKEN if it has none, or was cut off."""
    found: dict[int, int] = {}
    of_words = encoding.word_ids
    for place, position in enumerate(kept):
        if (word := of_words[position]) is not None:
            found.setdefault(word, place)
    return [found.get(word, NO_TOKEN) for word in range(words)]


def with_space_before_words(library: LibraryTokenizer) -> LibraryTokenizer:
    """Tokenizers of bytes have another token for a word that a space precedes, as it does in a text."""
    from tokenizers import Tokenizer

    content = json.loads(library.to_str())
    before = content["pre_tokenizer"] or {}
    for part in (before, *before.get("pretokenizers", [])):  # a sequence has several
        if part.get("type") == "ByteLevel":
            part["add_prefix_space"] = True
    return Tokenizer.from_str(json.dumps(content))
