"""Turns the rows of unlabelled files into examples that a model can predict, tokenised as its training data was."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from snaketrain.config.schema import Data, ReadInputs
from snaketrain.data.cells import as_text
from snaketrain.data.sources.data_issues import BadData, DataIssues
from snaketrain.data.sources.reading import cell, rows
from snaketrain.data.text.split_files import SplitWriter
from snaketrain.data.text.spooling import in_batches, row_schema
from snaketrain.data.text.surveying import Example, decodable
from snaketrain.data.tokenization.opening import with_tokenizer
from snaketrain.data.tokenization.tokenizer import Tokenizer


@dataclass
class UnlabelledRows:
    """The rows with a text; the others have no prediction."""

    reading: Data
    id_column: str | None
    issues: DataIssues = field(default_factory=DataIssues)
    ids: list[str] = field(default_factory=list)

    def examples(self, files: list[Path], root: Path) -> Iterator[Example]:
        further = {self.id_column} if self.id_column else set()
        for number, row in enumerate(rows(files, self.reading, self.issues, root, further)):
            texts = tuple([decodable(row, "text", column, self.issues) for column in self.reading.text])
            if not all(map(str.strip, texts)):
                self.issues.add("empty_text", row.location)
                continue
            self.ids.append(cell("id", row, self.id_column, as_text) if self.id_column else str(number))
            yield Example(row.file, row.line, texts, None)


def prepare_unlabelled(
    data: Data, inputs: ReadInputs, files: list[Path], root: Path, tokenizer: Path, label_names: list[str], path: Path, cores: int = 1
) -> UnlabelledRows:
    """Write the examples to `path`. `data`: the settings of the training data; `tokenizer`: a folder."""
    return with_tokenizer(tokenizer, data, cores, lambda opened: _write(data, inputs, files, root, opened, label_names, path))


def _write(
    data: Data, inputs: ReadInputs, files: list[Path], root: Path, tokenizer: Tokenizer, label_names: list[str], path: Path
) -> UnlabelledRows:
    found = UnlabelledRows(inputs.reading(data), inputs.id)
    batches = tokenizer.encode(in_batches(found.examples(files, root), row_schema(found.reading)))
    SplitWriter(found.reading, label_names, {}, labelled=False).write(batches, path, found.issues)
    if not found.ids:
        raise BadData(f"no row with a text in {', '.join(file.name for file in files[:3])}. Check the file and the columns of the text.")
    return found
