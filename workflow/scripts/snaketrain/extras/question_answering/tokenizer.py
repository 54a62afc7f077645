"""Encodes questions with their contexts, a long context in windows that overlap, one after another in one list."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pyarrow

from snaketrain.data.cells import BadData
from snaketrain.data.tokenizer import BatchTokenizer, token_schema
from snaketrain.extras.question_answering import NO_PLACE
from snaketrain.extras.question_answering.settings import stride_of

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as LibraryTokenizer

    from snaketrain.config.schema import Data

QUESTION, CONTEXT = 0, 1  # of the texts of a pair


class WindowTokenizer(BatchTokenizer):
    def __init__(self, library: LibraryTokenizer, data: Data):
        self.library, self.schema, self.stride = library, token_schema(data), stride_of(data)
        self.room = (data.max_length or 0) - library.num_special_tokens_to_add(True)
        self.longest_question = self.room // 2
        if self.stride >= self.room - self.longest_question:
            raise BadData(
                f"data.stride: windows that overlap by {self.stride} tokens do not move forward beside a long question, since data.max_length "
                f"{data.max_length} leaves {self.room - self.longest_question} tokens for the context. Make it smaller, or max_length larger."
            )

    def encode_batch(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        questions, contexts = texts["text"].to_pylist(), texts["text_pair"].to_pylist()
        encodings = self.library.encode_batch(list(zip(questions, contexts, strict=True)))
        return pyarrow.RecordBatch.from_pylist([self.row(*each) for each in zip(encodings, contexts, strict=True)], schema=self.schema)

    def row(self, encoding: Encoding, text: str) -> dict[str, object]:
        """Each window has the special tokens and the question, cut off if it would take more than half of the window."""
        ids, types, offsets, texts = encoding.ids, encoding.type_ids, encoding.offsets, encoding.sequence_ids
        question, context, special = ([at for at, of in enumerate(texts) if of == which] for which in (QUESTION, CONTEXT, None))
        in_each, width = {*special, *question[: self.longest_question]}, self.room - min(len(question), self.longest_question)
        starts = range(0, max(1, len(context) - self.stride), width - self.stride)
        windows = [sorted(in_each.union(context[start : start + width])) for start in starts]
        places = list(chain(*windows))
        begins, ends = zip(*(offsets[at] if texts[at] == CONTEXT else (NO_PLACE, NO_PLACE) for at in places), strict=True)
        return {
            "input_ids": [ids[at] for at in places], "token_type_ids": [types[at] for at in places], "windows": list(map(len, windows)),
            "begins": begins, "ends": ends, "context": list(map(ord, text)), "truncated": len(question) > self.longest_question,
        }  # fmt: skip
