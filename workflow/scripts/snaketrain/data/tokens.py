"""Batches of texts get their tokens, in the background of whatever else is done with the batches."""

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import pyarrow

from snaketrain.settings import Data


class Tokens:
    """Columns with the tokens of texts or pairs, and whether they were cut."""

    def __init__(self, tokenizer: Any, data: Data, background: Executor):
        self.tokenizer, self.background = tokenizer, background
        self.pair, self.answers = len(data.text) == 2, len(data.text) == 2 and data.label is None
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
        encoded = self.tokenizer.encode_batch_fast(texts)
        columns = {"input_ids": [encoding.ids + self.end for encoding in encoded]}
        if self.pair:
            columns["token_type_ids"] = [self._types(encoding) for encoding in encoded]
        columns["truncated"] = [bool(encoding.overflowing) for encoding in encoded]
        for field in self.fields:
            batch = batch.append_column(field, pyarrow.array(columns[field.name], field.type))
        return batch

    def _types(self, encoding: Any) -> list[int]:
        if not self.answers:
            return encoding.type_ids
        # from the first token of the answer on; not every tokenizer's own types tell prompt and answer apart
        return list(itertools.accumulate((text or 0 for text in encoding.sequence_ids), max)) + [1] * len(self.end)
