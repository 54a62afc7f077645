"""Texts get their tokens while others are read or written: from a thread, or from processes where there is much to do.

Python lets one thread work at a time; but a process needs a second to begin.
"""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import pyarrow

from snaketrain.data.formats import BadData
from snaketrain.data.tokens import Tokens

MUCH = 5_000_000  # bytes of files that are worth a process
MOST = 4  # processes; one that reads and writes is not faster than that


class Workers:
    """They make their own `Tokens` with `make`; `processes` 0: a thread of this one."""

    def __init__(self, make: Callable[[], Tokens], processes: int = 0):
        self.ahead = processes + 1  # batches that they are given before the first must be ready
        self.executor: Executor
        if processes:
            self.executor = ProcessPoolExecutor(processes, get_context("spawn"), _begin, (make,))
            self.submit: Callable[[pyarrow.RecordBatch], Future] = lambda batch: self.executor.submit(_columns, batch)
        else:
            self.executor, tokens = ThreadPoolExecutor(1), make()
            self.submit = lambda batch: self.executor.submit(tokens.columns, batch)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: Any) -> None:
        self.executor.shutdown(cancel_futures=True)

    def tokenised(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The batches with their tokens, in order."""
        begun: deque[tuple[pyarrow.RecordBatch, Future]] = deque()
        for batch in batches:
            texts = batch.select([name for name in batch.schema.names if name.startswith("text")])
            begun.append((batch, self.submit(texts)))
            if len(begun) > self.ahead:
                yield _finished(*begun.popleft())
        while begun:
            yield _finished(*begun.popleft())


def how_many(files: Iterable[Path], cores: int) -> int:
    """Processes for these files, beside the one that reads them."""
    return min(cores - 1, MOST) if sum(file.stat().st_size for file in files) > MUCH else 0


def _finished(batch: pyarrow.RecordBatch, columns: Future) -> pyarrow.RecordBatch:
    try:
        found = columns.result()
    except BrokenProcessPool:
        raise BadData(
            "a process that tokenises was killed, most likely since the memory ran out. Give this stage more memory (mem_mb), or fewer threads."
        ) from None
    for name in found.schema.names:
        batch = batch.append_column(found.schema.field(name), found[name])
    return batch


# --- in each of the processes

_tokens: Tokens


def _begin(make: Callable[[], Tokens]) -> None:
    global _tokens
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the one that reads ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _tokens = make()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # killed, it could not tell this process to end, which would wait for ever


def _columns(texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    return _tokens.columns(texts)
