"""How many batches of `batch_tokens` tokens the sections of each epoch have: only making all batches tells, so it is remembered.

The table has a number for each million examples. It is beside the prepared data, where a resumed training finds it, and other trainings
whose batches are the same.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from snaketrain.config.schema import Train
from snaketrain.data.loading import order
from snaketrain.runtime.manifests import Manifest, digest, file_digest, read_if_intact, write_checked


class BatchCounts:
    """`path`: None to remember nothing."""

    def __init__(self, path: Path | None = None):
        self.path, self.changed = path, False
        self.ends: dict[str, list[int]] = {}  # by epoch: how many batches are made when each section ends
        if path:
            kept = read_if_intact(path, "the batches are counted again", of=path.stem)
            self.ends = kept["ends"] if kept else {}

    @classmethod
    def of(cls, data: Manifest, train: Train) -> "BatchCounts":
        """Those of a training on prepared data."""
        if train.batch_tokens is None:
            return cls()
        code = [file_digest(Path(order.__file__).with_name(name)) for name in ("batches.py", "order.py", "layouts.py")]
        key = digest(data.content, train.seed, train.batch_tokens, train.packing, train.block_length, code, np.__version__)
        return cls(data.folder / ".batch_counts" / f"{key}.json")

    def known(self, epoch: int, count: Callable[[], np.ndarray]) -> np.ndarray:
        if str(epoch) not in self.ends:
            self.ends[str(epoch)] = count().tolist()
            self.changed = True
        return np.array(self.ends[str(epoch)])

    def save(self) -> None:
        if self.path and self.changed:
            with suppress(OSError):  # a folder that may only be read, or a full disk: the next training counts again
                write_checked(self.path, {"of": self.path.stem, "ends": self.ends})
                self.changed = False
