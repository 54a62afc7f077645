"""Encodes a question with each of its choices, one after another in one list."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import pyarrow

from snaketrain.data.tokenizer import BatchTokenizer, token_schema
from snaketrain.extras.multiple_choice import CHOICE_BREAK

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as LibraryTokenizer

    from snaketrain.config.schema import Data

QUESTION, CHOICE = 0, 1


class Kept(NamedTuple):
    """What is left of an encoding."""

    places: list[int]
    scored: list[int]  # whether each is of the choice
    truncated: bool


class ChoiceTokenizer(BatchTokenizer):
    """A pair of texts if the tokenizer ends each text with a special token, as those of encoders do; otherwise one running text."""

    def __init__(self, library: LibraryTokenizer, data: Data):
        self.library, self.schema, self.longest = library, token_schema(data), data.max_length or 0
        self.pairs = library.encode("a").sequence_ids[-1] is None

    def encode_batch(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        questions, lists = texts["text"].to_pylist(), [cell.split(CHOICE_BREAK) for cell in texts["text_pair"].to_pylist()]
        given = [(question, choice) for question, choices in zip(questions, lists, strict=True) for choice in choices]
        encodings = self.library.encode_batch(given if self.pairs else [" ".join(pair) for pair in given])
        of_each = zip(
            encodings, (self.kept(encoding, question) for encoding, (question, _) in zip(encodings, given, strict=True)), strict=True
        )
        rows = [self.row([next(of_each) for _ in choices]) for choices in lists]
        return pyarrow.RecordBatch.from_pylist(rows, schema=self.schema)

    def kept(self, encoding: Encoding, question: str) -> Kept:
        """Of what is too long the begin of the question is cut off, so that its end stays beside the choice; then the end of the choice."""
        parts: dict[int | None, list[int]] = {QUESTION: [], CHOICE: [], None: []}
        for place, (text, (_, end)) in enumerate(zip(encoding.sequence_ids, encoding.offsets, strict=True)):
            parts[text if self.pairs or text is None else int(end > len(question))].append(place)
        room = self.longest - len(parts[None])
        choice = parts[CHOICE][:room]
        before = parts[QUESTION][max(0, len(parts[QUESTION]) - room + len(choice)) :]
        places, of_choice = sorted(parts[None] + before + choice), {*choice}
        return Kept(places, [int(place in of_choice) for place in places], len(places) < len(encoding))

    def row(self, encoded: list[tuple[Encoding, Kept]]) -> dict[str, object]:
        return {
            "input_ids": [encoding.ids[place] for encoding, kept in encoded for place in kept.places],
            "token_type_ids": [encoding.type_ids[place] for encoding, kept in encoded for place in kept.places],
            "choices": [len(kept.places) for _, kept in encoded],
            "scored": list(chain(*(kept.scored for _, kept in encoded))),
            "truncated": any(kept.truncated for _, kept in encoded),
        }
