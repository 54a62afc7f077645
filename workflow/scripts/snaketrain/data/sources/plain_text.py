"""The examples of a plain text file: its lines, its paragraphs, or the whole file."""

from collections.abc import Iterator
from itertools import chain, groupby

from snaketrain.data.sources.data_issues import BadData

LONGEST = 2**28  # characters of one text: more would not fit into a batch's column


def texts(lines: Iterator[str], unit: str, name: str, first: int = 1) -> Iterator[tuple[int, str]]:
    """The line in which each text begins, and the text, with line ends as "\\n". `first`: the number of the first of these lines."""
    numbered = ((number, line.rstrip("\r\n")) for number, line in enumerate(lines, first))
    if unit == "line":
        yield from numbered
    elif unit == "paragraph":
        for filled, some in groupby(numbered, key=lambda line: bool(line[1].strip())):
            if filled:
                yield _joined(some, name)
    elif (line := next(numbered, None)) is not None:
        yield _joined(chain([line], numbered), name)


def _joined(lines: Iterator[tuple[int, str]], name: str) -> tuple[int, str]:
    begins, size = 0, 0
    kept: list[str] = []
    for number, line in lines:
        begins = begins or number
        kept.append(line)
        size += len(line) + 1
        if size > LONGEST:
            raise BadData(
                f"{name}, line {begins}: a text of more than {LONGEST:,} characters. Split the file, or choose a smaller `text_unit`."
            )
    return begins, "\n".join(kept)
