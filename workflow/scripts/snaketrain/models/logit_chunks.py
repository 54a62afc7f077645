"""Rows of logits in chunks: what is computed of a chunk at a time in float32 takes little memory beside all logits."""

from collections.abc import Iterator

from torch import Tensor

NO_TARGET = -100  # the target of a position that is not learnt
CHUNK = 2**24  # logits


def chunks(logits: Tensor) -> Iterator[slice]:
    rows = max(1, CHUNK // logits.shape[1])
    return (slice(start, start + rows) for start in range(0, len(logits), rows))
