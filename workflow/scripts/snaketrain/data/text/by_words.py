"""Texts, or pairs of them, put together from the tokens of their words: cut, and between those that a tokenizer adds."""

from typing import Any, NamedTuple

import numpy
import pyarrow
from pyarrow.compute import and_, invert, less, not_equal

from snaketrain.data.text.words import Words, by_turns

CHARACTERS = 6  # of a text for each token that is kept; most languages' tokens have fewer
ENOUGH = 16  # tokens more than are kept, so that how the text goes on makes no difference to these


class Frame(NamedTuple):
    """The tokens before, between and behind texts, one part more than there are texts; their types, and those of the texts."""

    parts: list[list[int]]
    types: list[list[int]]
    text_types: list[int]


class ByWords:
    """For a tokenizer that `parts_words` and cuts nothing."""

    def __init__(self, tokenizer: Any, longest: int | None, frame: Frame):
        self.words, self.frame = Words(tokenizer), frame
        self.names = ["text", "text_pair"][: len(frame.text_types)]
        self.room = longest and longest - sum(map(len, frame.parts))

    def columns(self, batch: pyarrow.RecordBatch) -> dict[str, pyarrow.Array]:
        texts = [self._tokens(batch[name]) for name in self.names]
        lengths = [rows.value_lengths().to_numpy() for rows in texts]
        total = sum(lengths)
        kept = lengths if self.room is None else shares(lengths, self.room)
        places, offsets = self._places(texts, kept)
        ids = [*(rows.values.to_numpy() for rows in texts), *(numpy.array(part, numpy.int32) for part in self.frame.parts)]
        columns = {
            "input_ids": pyarrow.ListArray.from_arrays(offsets, numpy.concatenate(ids)[places]),
            "truncated": pyarrow.array(total > (total if self.room is None else self.room)),
        }
        if len(texts) == 2:
            kinds = [numpy.full(len(rows.values), kind, numpy.int8) for rows, kind in zip(texts, self.frame.text_types, strict=True)]
            types = [*kinds, *(numpy.array(part, numpy.int8) for part in self.frame.types)]
            columns["token_type_ids"] = pyarrow.ListArray.from_arrays(offsets, numpy.concatenate(types)[places])
        return columns

    def _tokens(self, texts: pyarrow.StringArray) -> pyarrow.ListArray:
        if self.room is None or len(self.names) == 2:  # of a pair it matters which is the longer one
            return self.words.tokens(texts)
        # most of a long text would become tokens only to be cut off: its beginning first, and all of it where that is not enough
        beginnings = pyarrow.array([_beginning(text, CHARACTERS * self.room) for text in texts.to_pylist()], pyarrow.string())
        found = self.words.tokens(beginnings)
        doubtful = and_(not_equal(beginnings, texts), less(found.value_lengths(), self.room + ENOUGH))
        if not doubtful.true_count:
            return found
        return by_turns(doubtful, self.words.tokens(texts.filter(doubtful)), found.filter(invert(doubtful)))

    def _places(self, texts: list[pyarrow.ListArray], kept: list[numpy.ndarray]) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Of each row's tokens - a part, a text, a part, ... - among those of all texts and then all parts; and where each row begins."""
        parts = list(map(len, self.frame.parts))
        begins = numpy.cumsum([0, *(len(rows.values) for rows in texts), *parts])
        starts = numpy.empty((len(kept[0]), len(texts) + len(parts)), int)
        sizes = numpy.empty_like(starts)
        starts[:, 0::2], sizes[:, 0::2] = begins[len(texts) : -1], parts
        for number, rows in enumerate(texts):
            starts[:, 2 * number + 1] = begins[number] + rows.offsets.to_numpy()[:-1]
            sizes[:, 2 * number + 1] = kept[number]
        ends = numpy.cumsum(sizes)
        places = numpy.arange(sizes.sum()) + numpy.repeat(starts.ravel() - (ends - sizes.ravel()), sizes.ravel())
        return places, numpy.cumsum([0, *sizes.sum(axis=1)]).astype(numpy.int32)


def shares(lengths: list[numpy.ndarray], room: int) -> list[numpy.ndarray]:
    """How much is kept of texts or pairs: of a pair's longer text less, until both are as long."""
    if len(lengths) == 1:
        return [numpy.minimum(lengths[0], room)]
    first, second = lengths
    shorter = numpy.minimum(numpy.minimum(first, second), room // 2)
    cut = [numpy.where(first <= second, shorter, room - shorter), numpy.where(first <= second, room - shorter, shorter)]
    return [numpy.where(first + second <= room, whole, part) for whole, part in zip(lengths, cut, strict=True)]


def frame_of(tokenizer: Any, count: int) -> Frame | None:
    """What a tokenizer puts around any `count` texts; None if it does something else with them."""
    alone, around = tokenizer.encode("a", add_special_tokens=False).ids, tokenizer.encode(*["a"] * count)
    whose = around.sequence_ids
    if not alone or [text for text in whose if text is not None] != [text for text in range(count) for _ in alone]:
        return None
    starts = [whose.index(text) for text in range(count)]
    if any(around.ids[start : start + len(alone)] != alone for start in starts):
        return None
    parts = [slice(a, b) for a, b in zip([0, *(start + len(alone) for start in starts)], [*starts, len(whose)], strict=True)]
    return Frame(
        [around.ids[part] for part in parts], [around.type_ids[part] for part in parts], [around.type_ids[start] for start in starts]
    )


def _beginning(text: str, longest: int) -> str:
    """Whole words of it."""
    end = text.rfind(" ", 0, longest) if len(text) > longest else -1
    return text if end < 0 else text[:end]
