"""Checks what a stream cannot do before any job, where the file of its class shows that it is one.

Elsewhere, such as for a function that returns a stream, `prepare_data` and the training refuse the same.
"""

from collections.abc import Iterator
from pathlib import Path

from snaketrain.config.references import NotFound, find
from snaketrain.config.schema import Settings
from snaketrain.config.schema.streams import stream_data_problems, stream_training_problems
from snaketrain.orchestration.inspection.definitions import class_and_bases, definition_of


def stream_errors(run: Settings) -> Iterator[str]:
    use = run.data.train.use if run.data.train else None
    if use is None:
        return
    try:
        file, name = find(use, None)
    except NotFound:  # reported with the other names
        return
    if file and is_stream(file, name):
        yield from stream_data_problems(run.data)
        yield from stream_training_problems(run.train)


def is_stream(file: Path, name: str) -> bool:
    """Whether a class iterates and has no numbered items, as far as the user's own files say."""
    iterates = False
    for each in class_and_bases(definition_of(file.resolve(), name, libraries=()), libraries=()):
        if each is None:  # of a library
            return False
        methods = {getattr(statement, "name", "") for statement in each.node.body}
        if "__getitem__" in methods:
            return False
        if any(getattr(base, "attr", getattr(base, "id", "")) == "IterableDataset" for base in each.node.bases):
            return True
        iterates = iterates or "__iter__" in methods
    return iterates
