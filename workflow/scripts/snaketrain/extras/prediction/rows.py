"""Turns the rows of unlabelled files into examples that a model can predict, tokenised as its training data was."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow
from jinja2 import TemplateError

from snaketrain.config.schema import Data
from snaketrain.data.cells import ASSISTANT, DESCRIPTIONS, BadData, DataIssues, as_messages, read_messages
from snaketrain.data.reading import cell, parser_of, rows
from snaketrain.data.split_files import SplitWriter, in_batches, row_schema
from snaketrain.data.surveying import Example, decodable
from snaketrain.data.tokenizer import TOKENS, BatchTokenizer, ChatTokenizer, PlainTokenizer, Tokenizer, source_and_target
from snaketrain.data.tokenizer_files import load_library_tokenizer, make_tokenizer, with_tokenizer
from snaketrain.extras.prediction.settings import ReadInputs
from snaketrain.labels.base import as_text
from snaketrain.runtime.strict_json import JsonObject

ISSUES = DESCRIPTIONS | {"answered": "chats that end with an answer of the assistant, which is dropped and generated"}


@dataclass
class UnlabelledRows:
    """The rows with a text; the others have no prediction."""

    reading: Data
    id_column: str | None
    issues: DataIssues = field(default_factory=DataIssues)
    ids: list[str] = field(default_factory=list)

    def examples(self, files: list[Path], root: Path) -> Iterator[Example]:
        further = {self.id_column} if self.id_column else set()
        columns = {column: self.reading.setting_of(name) for name, column in self.reading.text_columns.items()}
        parse = parser_of(self.reading)
        for number, row in enumerate(rows(files, self.reading, self.issues, root, further)):
            texts = tuple([decodable(row, setting, column, self.issues, parse) for column, setting in columns.items()])
            if self.reading.messages and texts[0]:
                texts = (self._question(texts[0], row.location),)
            if not all(map(str.strip, texts)):
                self.issues.add("empty_text", row.location)
                continue
            # a row with too many fields is not among `rows`, but one that the user counts
            counted = str(number + self.issues.counts["long_row"])
            self.ids.append(cell("id", row, self.id_column, as_written) if self.id_column else counted)
            yield Example(row.file, row.line, texts, None)

    def _question(self, chat: str, location: str) -> str:
        """The chat up to where the assistant is to speak."""
        messages = read_messages(chat)
        said = next((n for n, message in enumerate(reversed(messages)) if message["role"] != ASSISTANT), len(messages))
        if said:
            self.issues.add("answered", location, str(messages[-1]["content"]))
        return as_messages(messages[: len(messages) - said])


def as_written(value: object) -> str:
    """Unlike a label, in which 1.0 and 1 mean the same."""
    return value if isinstance(value, str) else as_text(value)


def prepare_unlabelled(
    data: Data, inputs: ReadInputs, files: list[Path], root: Path, tokenizer: Path, label_names: list[str], path: Path, cores: int = 1,
    generates: bool = False,
) -> UnlabelledRows:  # fmt: skip
    """Write the examples to `path`. `data`: the settings of the training data; `tokenizer`: a folder; `generates`: the examples are prompts."""
    reading = inputs.reading(data, generates)

    def write(opened: Tokenizer) -> UnlabelledRows:
        found = UnlabelledRows(reading, inputs.id)
        batches = opened.encode(in_batches(found.examples(files, root), row_schema(reading)))
        SplitWriter(reading, label_names, {}, labelled=False).write(batches, path, found.issues)
        if not found.ids:
            raise BadData(
                f"no row with a text in {', '.join(file.name for file in files[:3])}. Check the file and the columns of the text."
            )
        return found

    return with_tokenizer(tokenizer, data, cores, write, make_prompt_tokenizer if generates else make_tokenizer)


# --- Prompts whose answers are to be generated: the tokens that stand before the answers in the training data.

ANSWER = "a"  # any text: what comes before it is the prompt


def make_prompt_tokenizer(folder: Path, data: Data, plain: bool = False) -> BatchTokenizer:
    """`data`: the settings of the training data."""
    if data.target:
        return make_tokenizer(folder, source_and_target(data)[0], plain)
    if data.messages:
        return ChatPromptTokenizer(folder, data.model_copy(update={"max_length": None}), None)
    return PromptTokenizer(PlainTokenizer(load_library_tokenizer(folder, data), data), data)


class PromptTokenizer(BatchTokenizer):
    """Of texts that are to be continued, or answered as in the pairs of the training data. Their ends are cut off where pairs would be longer than
    `data.max_length`."""

    def __init__(self, plain: PlainTokenizer, data: Data):
        self.library, self.longest, self.pair = plain.library, plain.max_length, data.pair

    def encode_batch(self, texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        found = [self._prompt(text) for text in texts["text"].to_pylist()]
        columns = {"input_ids": pyarrow.array([ids for ids, _ in found], TOKENS), "truncated": [cut for _, cut in found]}
        return pyarrow.record_batch(columns)

    def _prompt(self, text: str) -> tuple[list[int], bool]:
        encoding = self.library.encode(text, ANSWER) if self.pair else self.library.encode(text)
        sequences = encoding.sequence_ids
        last = max((place for place, sequence in enumerate(sequences) if sequence == 0), default=-1)
        end = sequences.index(1) if self.pair else last + 1
        more = 0 if self.longest is None else max(0, end - self.longest)
        return encoding.ids[: last + 1 - more] + encoding.ids[last + 1 : end], more > 0


class ChatPromptTokenizer(ChatTokenizer):
    """Of chats up to where the assistant is to speak. They are never cut off, since that would remove the question."""

    def encoded(self, messages: list[JsonObject]) -> tuple[list[int], list[int]]:
        try:
            text = self._beginning(messages)
        except (TemplateError, ValueError) as error:
            raise BadData(f"the chat template refuses a chat: {error} ({str(messages)[:200]})") from None
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids, [0] * len(ids)

    def _beginning(self, messages: list[JsonObject]) -> str:
        """As in the training: up to what the template marks, or what it writes as a prompt."""
        if not self.marks_answers:
            return self._written(messages, add_generation_prompt=True)
        text, answers = self._marked([*messages, {"role": ASSISTANT, "content": ANSWER}])
        return text[: answers[-1][0]]
