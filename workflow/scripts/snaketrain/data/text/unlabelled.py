"""Turns the rows of unlabelled files into examples that a model can predict, tokenised as its training data was."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from snaketrain.config.schema import Data, ReadInputs
from snaketrain.data.cells import ASSISTANT, as_messages, as_text, read_messages
from snaketrain.data.sources.data_issues import DESCRIPTIONS, BadData, DataIssues
from snaketrain.data.sources.reading import cell, rows
from snaketrain.data.text.split_files import SplitWriter, in_batches, row_schema
from snaketrain.data.text.surveying import Example, decodable
from snaketrain.data.tokenization.opening import open_tokenizer, with_tokenizer
from snaketrain.data.tokenization.prompts import open_prompt_tokenizer
from snaketrain.data.tokenization.tokenizer import Tokenizer

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
        for number, row in enumerate(rows(files, self.reading, self.issues, root, further)):
            texts = tuple([decodable(row, setting, column, self.issues) for column, setting in columns.items()])
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
    reading, opened = inputs.reading(data, generates), open_prompt_tokenizer if generates else open_tokenizer
    return with_tokenizer(tokenizer, data, cores, lambda used: _write(reading, inputs.id, files, root, used, label_names, path), opened)


def _write(
    reading: Data, id_column: str | None, files: list[Path], root: Path, tokenizer: Tokenizer, label_names: list[str], path: Path
) -> UnlabelledRows:
    found = UnlabelledRows(reading, id_column)
    batches = tokenizer.encode(in_batches(found.examples(files, root), row_schema(reading)))
    SplitWriter(reading, label_names, {}, labelled=False).write(batches, path, found.issues)
    if not found.ids:
        raise BadData(f"no row with a text in {', '.join(file.name for file in files[:3])}. Check the file and the columns of the text.")
    return found
