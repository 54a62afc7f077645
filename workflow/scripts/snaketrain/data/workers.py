"""Texts get their tokens while others are read or written: from a thread, and where there is much to do from processes.

Python lets one thread work at a time; but a process needs a second to wake up.
"""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import Any

import pyarrow

from snaketrain.data.formats import BadData
from snaketrain.data.tokens import Tokens

MUCH = 2_000_000  # bytes of texts, behind which a process is woken up
MOST = 4  # processes; who reads and writes is not faster than that


class Workers:
    """They make their own `Tokens` with `make`, and take no more than so many cores together with who reads and writes."""

    def __init__(self, make: Callable[[], Tokens], cores: int = 1):
        count = min(cores - 1, MOST)
        self.ahead = count + 1  # batches that are given out before the first must be ready
        self.thread, self.tokens, self.given = ThreadPoolExecutor(1), make(), 0
        self.processes = ProcessPoolExecutor(count, get_context("spawn"), _wake_up, (make, -(-cores // count))) if count else None
        self.awake: Future | None = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: Any) -> None:
        self.thread.shutdown(cancel_futures=True)
        if self.processes:
            self.processes.shutdown(cancel_futures=True)

    def tokenised(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The batches with their tokens, in order."""
        begun: deque[tuple[pyarrow.RecordBatch, Future]] = deque()
        try:
            for batch in batches:
                begun.append((batch, self._begin(batch.select([name for name in batch.schema.names if name.startswith("text")]))))
                if len(begun) > self.ahead:
                    yield _finished(*begun.popleft())
            while begun:
                yield _finished(*begun.popleft())
        except BrokenProcessPool:
            raise BadData(
                "a process that tokenises was killed, most likely since the memory ran out. Give this stage more memory (mem_mb), or fewer threads."
            ) from None

    def _begin(self, texts: pyarrow.RecordBatch) -> Future:
        self.given += texts.nbytes
        if self.processes and not self.awake and self.given > MUCH:
            self.awake = self.processes.submit(_stretch)
        if self.processes and self.awake and self.awake.done():
            return self.processes.submit(_columns, texts)
        return self.thread.submit(self.tokens.columns, texts)


def _finished(batch: pyarrow.RecordBatch, columns: Future) -> pyarrow.RecordBatch:
    found = columns.result()
    for name in found.schema.names:
        batch = batch.append_column(found.schema.field(name), found[name])
    return batch


# --- in each of the processes

_tokens: Tokens


def _wake_up(make: Callable[[], Tokens], cores: int) -> None:
    global _tokens
    os.environ["RAYON_NUM_THREADS"] = str(cores)  # of the tokenizers library
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the one that reads ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _tokens = make()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # killed, it could not tell this process to end, which would wait for ever


def _stretch() -> None:
    """The first thing to do, by which it is seen that a process is awake."""


def _columns(texts: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    return _tokens.columns(texts)
