"""CoNLL files: a word on each line with its tag, and an empty line after each sentence."""

from collections.abc import Iterator
from itertools import chain

from snaketrain.data.cells import BadData
from snaketrain.runtime.strict_json import JsonObject

NAME, ENDINGS = "conll", (".conll", ".iob", ".iob2", ".bio")
COMMENT, NEW_DOCUMENT = "#", "-DOCSTART-"


def rows(lines: Iterator[str], columns: list[str] | None, name: str) -> Iterator[tuple[int, JsonObject]]:
    """The line where each sentence begins, and its lists by column. Without `columns` the first one is `words`, and the last one `tags`.

    Tabs separate the fields if the first line with a word has one, otherwise white space. A line that begins with # and has another number of
    fields is a comment.
    """
    leading: list[str] = []
    for line in lines:
        leading.append(line)
        if line.strip() and not line.startswith(COMMENT):
            break
    separator = "\t" if leading and "\t" in leading[-1] else None
    width = len(columns) if columns else len(leading[-1].split(separator)) if leading else 0
    names = columns or ["words", *map(str, range(2, width)), *(["tags"] if width > 1 else [])]
    begins, sentence = 0, list[list[str]]()
    for number, line in enumerate(chain(leading, lines, [""]), 1):
        fields = [field.strip() for field in line.split(separator)] if line.strip() else []
        if not fields and sentence:
            yield begins, dict(zip(names, map(list, zip(*sentence, strict=True)), strict=True))
            sentence = []
        if not fields or fields[0] == NEW_DOCUMENT or (line.startswith(COMMENT) and len(fields) != width):
            continue
        if len(fields) != width:
            expected = f"the {width} columns {', '.join(names)}" if width > 1 else "one word"
            raise BadData(f"{name}, line {number}: {fields} instead of {expected}. Give each word a tag, or remove the line.")
        begins = begins if sentence else number
        sentence.append(fields)
