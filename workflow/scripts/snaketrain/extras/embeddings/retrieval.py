"""How well embeddings find the second text of each pair among those of all pairs. Computed of all rows, on the CPU."""

from collections import defaultdict
from collections.abc import Callable

import numpy as np
from torch import Tensor

from snaketrain.tasks.metrics import OfRows

CHUNK = 1024  # pairs that are compared with all candidates at a time
GAINS: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # of the rank of the right answer, from 1
    "recall_at_1": lambda ranks: ranks <= 1,
    "recall_at_10": lambda ranks: ranks <= 10,
    "mrr": lambda ranks: 1 / ranks,
    "ndcg_at_10": lambda ranks: np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0),
}
RANKED = next(iter(GAINS))


class Ranked(OfRows):
    """The first of them gets the embeddings, which are large, and leaves the ranks to the others."""

    higher_is_better = True

    def __init__(self, name: str, ranks: list[np.ndarray]):
        self.name, self.ranks = name, ranks

    def compute(self, *values: Tensor) -> float:
        if self.name == RANKED:
            embeddings, texts = (value.numpy() for value in values)
            self.ranks[:] = [ranks_of(embeddings, texts)]
        return float(GAINS[self.name](self.ranks[0]).mean())


def retrieval_metrics() -> dict[str, Ranked]:
    ranks: list[np.ndarray] = []
    return {name: Ranked(name, ranks) for name in GAINS}


def ranks_of(embeddings: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """The rank of each pair's second text among all different ones, but for the first text itself and what else belongs to it; the last
    of equal ones, so that embeddings that are all alike find nothing."""
    candidates, places, columns = np.unique(texts[:, 1], return_index=True, return_inverse=True)
    found, belonging = embeddings[places, 1], defaultdict[int, set[int]](set)
    for (first, _), column in zip(texts.tolist(), columns.tolist(), strict=True):
        belonging[first].add(column)
    for column, text in enumerate(candidates.tolist()):
        if text in belonging:
            belonging[text].add(column)
    ranks = np.empty(len(texts), np.int64)
    for start in range(0, len(texts), CHUNK):
        part = slice(start, start + CHUNK)
        cosines = embeddings[part, 0] @ found.T
        own = cosines[np.arange(len(cosines)), columns[part]]
        for row, first, column in zip(cosines, texts[part, 0].tolist(), columns[part].tolist(), strict=True):
            row[list(belonging[first] - {column})] = -np.inf
        ranks[part] = (~(cosines < own[:, None])).sum(1)  # NaN is last as well
    return ranks
