"""Entities in IOB2 tags, and precision, recall and F1 of them as seqeval defines these."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

OUTSIDE = "O"
TAG = re.compile(r"O|[BI]-\S+")
READINGS = ("", "strict_")  # of the same tags; what the names of their figures begin with


class Entity(NamedTuple):
    type: str
    start: int
    end: int
    begun: bool  # with `B-`; of IOB2, read strictly, only these are entities


def entities(tags: Iterable[str]) -> list[Entity]:
    """Read like conlleval and seqeval's default: an `I-` that does not continue an entity of its type begins one."""
    found: list[Entity] = []
    opened: Entity | None = None
    for place, tag in enumerate((*tags, OUTSIDE)):
        prefix, _, of_type = tag.partition("-")
        if opened and not (prefix == "I" and of_type == opened.type):
            found.append(opened._replace(end=place))
            opened = None
        if prefix != OUTSIDE and opened is None:
            opened = Entity(of_type, place, place, prefix == "B")
    return found


def types_of(names: Iterable[str]) -> list[str]:
    return sorted({name.partition("-")[2] for name in names} - {""})


def counts(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], types: Sequence[str]) -> np.ndarray:
    """For each sentence and each of READINGS the entities that are right, predicted and true: a row for each of these, a column for each type."""
    import numpy as np

    made = np.zeros((len(true), len(READINGS), 3, len(types)))
    column = {name: number for number, name in enumerate(types)}
    for of_sentence, tags, guesses in zip(made, true, predicted, strict=True):
        ours, theirs = set(entities(guesses)), set(entities(tags))
        for reading, strict in zip(of_sentence, (False, True), strict=True):
            # read leniently, it makes no difference how an entity begins
            guessed, given = ({e if strict else e._replace(begun=True) for e in some if e.begun or not strict} for some in (ours, theirs))
            for row, some in zip(reading, (guessed & given, guessed, given), strict=True):
                for entity in some:
                    row[column[entity.type]] += 1
    return made


def by_type(found: np.ndarray) -> np.ndarray:
    """Precision, recall and F1 of each type, in rows, from the rows of `counts`; 0 of nothing."""
    import numpy as np

    right, predicted, true = found
    return np.stack([right, right, 2 * right]) / np.maximum(np.stack([predicted, true, predicted + true]), 1e-9)


def figures(found: np.ndarray, start: str = "") -> dict[str, float]:
    """Of all entities together, and `macro_f1`, the mean over the types that occur or are predicted. `start`: of the names."""
    precision, recall, f1 = by_type(found.sum(1, keepdims=True))[:, 0].tolist()
    occurs = found[1:].sum(0) > 0
    macro = float(by_type(found)[2][occurs].mean()) if occurs.any() else 0.0
    return {f"{start}f1": f1, f"{start}precision": precision, f"{start}recall": recall, f"{start}macro_f1": macro}


def all_figures(found: np.ndarray) -> dict[str, float]:
    return {name: value for start, of_reading in zip(READINGS, found, strict=True) for name, value in figures(of_reading, start).items()}
