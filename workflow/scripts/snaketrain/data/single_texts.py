"""Tokens of texts that are not one of a pair: cut behind the first so many, between those that are added to each."""

from typing import Any

import numpy
import pyarrow
from pyarrow.compute import and_, greater, invert, less, list_slice, not_equal

from snaketrain.data.words import Words, as_bytes, by_turns, lists

CHARACTERS = 6  # of a text for each token that is kept; most languages' tokens have fewer
ENOUGH = 16  # tokens more than are kept, so that how the text goes on makes no difference to these


class SingleTexts:
    """For a tokenizer that `parts_words`. These tokens go before and behind those of each text."""

    def __init__(self, tokenizer: Any, max_length: int | None, before: list[int], behind: list[int]):
        self.words, self.around = Words(tokenizer), lists([as_bytes(before), as_bytes(behind)])
        self.room = max_length and max_length - len(before + behind)

    def columns(self, batch: pyarrow.RecordBatch) -> dict[str, pyarrow.Array]:
        if self.room is None:
            found = self.words.tokens(batch["text"])
            return {"input_ids": self._between(found), "truncated": pyarrow.array([False] * len(found))}
        found = self._enough(batch["text"], self.room)
        kept = list_slice(found, 0, self.room)
        return {"input_ids": self._between(kept), "truncated": greater(found.value_lengths(), self.room)}

    def _enough(self, texts: pyarrow.StringArray, room: int) -> pyarrow.ListArray:
        """Most of a long text would become tokens only to be cut off: its beginning first, and all of it where that is not enough."""
        beginnings = pyarrow.array([_beginning(text, CHARACTERS * room) for text in texts.to_pylist()], pyarrow.string())
        found = self.words.tokens(beginnings)
        doubtful = and_(not_equal(beginnings, texts), less(found.value_lengths(), room + ENOUGH))
        if not doubtful.true_count:
            return found
        return by_turns(doubtful, self.words.tokens(texts.filter(doubtful)), found.filter(invert(doubtful)))

    def _between(self, rows: pyarrow.ListArray) -> pyarrow.ListArray:
        before, behind = numpy.full(len(rows), len(rows)), numpy.full(len(rows), len(rows) + 1)
        order = numpy.stack([before, numpy.arange(len(rows)), behind], axis=1)
        parts = pyarrow.concat_arrays([rows, self.around]).take(pyarrow.array(order.ravel()))
        return pyarrow.ListArray.from_arrays(parts.offsets[::3], parts.values)


def added_tokens(tokenizer: Any) -> tuple[list[int], list[int]] | None:
    """What a tokenizer puts before and behind any text; None if it does something else."""
    alone, whole = tokenizer.encode("a", add_special_tokens=False).ids, tokenizer.encode("a").ids
    for start in range(len(whole) - len(alone) + 1):
        if alone and whole[start : start + len(alone)] == alone:
            return whole[:start], whole[start + len(alone) :]
    return None


def _beginning(text: str, longest: int) -> str:
    """Whole words of it."""
    end = text.rfind(" ", 0, longest) if len(text) > longest else -1
    return text if end < 0 else text[:end]
