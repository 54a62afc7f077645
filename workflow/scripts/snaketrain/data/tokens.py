"""Batches of texts get their tokens, in the background of whatever else is done with the batches."""

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import pyarrow

from snaketrain.data.single_texts import SingleTexts, added_tokens
from snaketrain.data.words import as_bytes, lists, parts_words
from snaketrain.settings import Data

TYPES = pyarrow.list_(pyarrow.int8())


class Tokens:
    """Columns with the tokens of texts or pairs, and whether they were cut."""

    def __init__(self, tokenizer: Any, data: Data, background: Executor):
        self.background = background
        end = [] if data.end_token is None else [tokenizer.token_to_id(data.end_token)]
        pair, added = len(data.text) == 2, added_tokens(tokenizer)
        if added and not pair and parts_words(tokenizer):
            self.columns = SingleTexts(tokenizer, data.max_length, added[0], added[1] + end).columns
        else:
            self.columns = Whole(tokenizer, pair, data.label is None, end).columns
        types = [pyarrow.field("token_type_ids", TYPES)] if pair else []
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
        columns = self.columns(batch)
        for field in self.fields:
            batch = batch.append_column(field, columns[field.name])
        return batch


class Whole:
    """As the tokenizer does it, which knows how to cut. What is kept of a pair depends on the lengths of both."""

    def __init__(self, tokenizer: Any, pair: bool, answers: bool, end: list[int]):
        self.tokenizer, self.pair, self.answers, self.end = tokenizer, pair, answers, end

    def columns(self, batch: pyarrow.RecordBatch) -> dict[str, pyarrow.Array]:
        texts = batch["text"].to_pylist()
        if self.pair:
            texts = list(zip(texts, batch["text_pair"].to_pylist(), strict=True))
        encoded = self.tokenizer.encode_batch_fast(texts)
        columns = {"input_ids": lists([as_bytes(encoding.ids + self.end) for encoding in encoded])}
        columns["truncated"] = pyarrow.array([bool(encoding.overflowing) for encoding in encoded])
        if self.pair:
            columns["token_type_ids"] = pyarrow.array([self._types(encoding) for encoding in encoded], TYPES)
        return columns

    def _types(self, encoding: Any) -> list[int]:
        if not self.answers:
            return encoding.type_ids
        # from the first token of the answer on; not every tokenizer's own types tell prompt and answer apart
        return list(itertools.accumulate((text or 0 for text in encoding.sequence_ids), max)) + [1] * len(self.end)
