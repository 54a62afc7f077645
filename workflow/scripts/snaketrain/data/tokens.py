"""Batches of texts get their tokens, in the background of whatever else is done with the batches."""

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import pyarrow

from snaketrain.settings import Data

CHARACTERS = 6  # of a text for each token that is kept; most languages' tokens have fewer
ENOUGH = 16  # tokens more than are kept, so that how the text goes on makes no difference to these


class Tokens:
    """Columns with the tokens of texts or pairs, and whether they were cut."""

    def __init__(self, tokenizer: Any, data: Data, background: Executor):
        self.tokenizer, self.background = tokenizer, background
        self.pair, self.answers = len(data.text) == 2, len(data.text) == 2 and data.label is None
        # what is kept of a pair depends on the lengths of both
        self.reach = data.max_length * CHARACTERS if data.max_length and not self.pair and _parts_words(tokenizer) else None
        self.end = [] if data.end_token is None else [tokenizer.token_to_id(data.end_token)]
        types = [pyarrow.field("token_type_ids", pyarrow.list_(pyarrow.int8()))] if self.pair else []
        self.fields = [pyarrow.field("input_ids", pyarrow.list_(pyarrow.int32())), *types, pyarrow.field("truncated", pyarrow.bool_())]

    def tokenised(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The batches with their tokens; one gets them while the next is made, and the one before is used."""
        begun: Future | None = None
        for batch in batches:
            before, begun = begun, self.background.submit(self._tokenise, batch)
            if before:
                yield before.result()
        if begun:
            yield begun.result()

    def _tokenise(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        texts = batch["text"].to_pylist()
        if self.pair:
            texts = list(zip(texts, batch["text_pair"].to_pylist(), strict=True))
        encoded = self._encoded(texts) if self.reach else self.tokenizer.encode_batch_fast(texts)
        columns = {"input_ids": [encoding.ids + self.end for encoding in encoded]}
        if self.pair:
            columns["token_type_ids"] = [self._types(encoding) for encoding in encoded]
        columns["truncated"] = [bool(encoding.overflowing) for encoding in encoded]
        for field in self.fields:
            batch = batch.append_column(field, pyarrow.array(columns[field.name], field.type))
        return batch

    def _encoded(self, texts: list[str]) -> list[Any]:
        """Most of a long text would become tokens only to be cut off: its beginning first, and all of it where that is not enough."""
        beginnings = [_beginning(text, self.reach) for text in texts]
        encoded = self.tokenizer.encode_batch_fast(beginnings)
        shortened = [number for number, text in enumerate(texts) if len(beginnings[number]) < len(text)]
        doubtful = [number for number in shortened if sum(map(len, encoded[number].overflowing)) < ENOUGH]
        for number, whole in zip(doubtful, self.tokenizer.encode_batch_fast([texts[number] for number in doubtful]), strict=True):
            encoded[number] = whole
        return encoded

    def _types(self, encoding: Any) -> list[int]:
        if not self.answers:
            return encoding.type_ids
        # from the first token of the answer on; not every tokenizer's own types tell prompt and answer apart
        return list(itertools.accumulate((text or 0 for text in encoding.sequence_ids), max)) + [1] * len(self.end)


def _beginning(text: str, longest: int) -> str:
    """Whole words of it."""
    end = text.rfind(" ", 0, longest) if len(text) > longest else -1
    return text if end < 0 else text[:end]


def _parts_words(tokenizer: Any) -> bool:
    """Whether words become tokens one by one, so that those behind a space make no difference to those before it."""
    return tokenizer.pre_tokenizer is not None and len(tokenizer.pre_tokenizer.pre_tokenize_str("a b")) == 2
